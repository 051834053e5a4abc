"""The signed privacy ledger of a site: entries, file, signed head, balance, recovery, witnesses."""
