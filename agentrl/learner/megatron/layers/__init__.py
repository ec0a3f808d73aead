"""What a layer is made of, one module for each kind of layer.

A module has `layer(architecture, config, index)`, which returns megatron-core's `ModuleSpec` of
layer `index`, counted from 0 over the whole model. `Architecture.layer` names the module.
"""
