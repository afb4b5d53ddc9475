"""Passes over graphs. One file, one function, one name: `canonicalize.canonicalize(mod)`.

`pattern` holds the pattern language, `rewrite` the engine that applies tables of rules, `graph`
the walks they share. The passes that bring an imported model into its final operators, in order:

    infer_types, eliminate_dead_code
    canonicalize, fold_constants, eliminate_common_subexpressions   one spelling, known values
    match_linear            needs folded transposes of weights; makes room for biases
    match_activations, match_layer_norm
    fold_scale              needs match_linear; before attention, whose operands are layers
    match_attention         needs folded masks
    canonicalize, fold_constants, eliminate_common_subexpressions, eliminate_dead_code
"""
