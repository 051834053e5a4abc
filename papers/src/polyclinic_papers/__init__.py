"""The five papers' experiments: "paper says | we get | why different", each a command that anyone can run."""
