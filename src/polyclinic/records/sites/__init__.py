"""A hospital's patients in memory: tensor, features, labels and people; from records, frames and arrays."""
