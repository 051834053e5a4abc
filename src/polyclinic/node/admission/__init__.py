"""Whether a site takes part: policy, budget and data checked, the owner asked, data kept only as long as allowed."""
