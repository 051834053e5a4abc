"""From a hospital's records to a site's tensor, with every row accounted for."""
