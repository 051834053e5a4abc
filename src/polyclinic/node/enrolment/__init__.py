"""Membership of a federation: certificate authority, invitations, joining, renewal."""
