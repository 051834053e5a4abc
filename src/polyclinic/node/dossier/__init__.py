"""What an ethics board signs: a study in plain words before it runs, and what happened after it, tied to study order and ledger."""
