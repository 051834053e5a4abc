"""The one database engine that reads every source, and the account of its rows."""
