"""What all tests share: no test fails because the machine is busy."""

from hypothesis import HealthCheck, settings

settings.register_profile("twinmill", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("twinmill")
