"""Who takes part in a federation: authority, invites, joining, renewal, keys born at the site."""
