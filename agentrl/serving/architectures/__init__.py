"""Model classes that an engine on a CPU host knows without importing all of SGLang's models.

SGLang imports every model file it ships (over 200) to find one class. `launch.engine_command` names
this package in `SGLANG_EXTERNAL_MODEL_PACKAGE`; SGLang then takes its models from here first and
falls back to its own list for any architecture that is not here.
"""
