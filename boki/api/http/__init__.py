"""Functions over HTTP: their requests, responses and gateways, and a port that speaks to a gateway."""
