"""Groups and latent classes of patients."""
