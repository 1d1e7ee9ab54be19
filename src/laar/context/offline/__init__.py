"""The paper's batch algorithms: all requests are known beforehand."""
