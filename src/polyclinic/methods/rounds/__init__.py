"""Parts that several factorizations share: phases, setup, local pass, step size, stopping rule."""
