"""The one way out of a hospital: check, noise, charge, approval, stored bytes."""
