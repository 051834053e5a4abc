"""The one door out of a hospital: release, mechanisms, accountant, ledger, policy, card."""
