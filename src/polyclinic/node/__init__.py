"""Run a study between hosts: messages, signed study order, rehearsal."""
