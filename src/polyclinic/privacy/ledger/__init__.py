"""A site's signed ledger: entries, file, signed head, balance, recovery, witnesses."""
