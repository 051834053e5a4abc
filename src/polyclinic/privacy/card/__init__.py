"""The privacy card of a result, from the ledgers that it depends on."""
