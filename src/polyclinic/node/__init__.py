"""Everything between hosts: the messages, the signed study, and one call that runs it."""
