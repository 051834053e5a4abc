"""What people see of a run: one HTML file, exports, review sheets; only what may be shown."""
