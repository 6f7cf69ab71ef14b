"""HTTP as the gateway speaks it: routes, the forms of requests and answers, limits of connections."""
