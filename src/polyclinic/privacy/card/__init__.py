"""The privacy card of a result, made from the ledgers of its sites."""
