"""What the owner of the data allows."""
