"""Which phenotypes come back: halves of the patients, other starts, other ranks, negative controls."""
