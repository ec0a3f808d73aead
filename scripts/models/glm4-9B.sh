# glm4-9B, Glm4ForCausalLM: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 40
   --hidden-size 4096
   --ffn-hidden-size 13696
   --num-attention-heads 32
   --kv-channels 128
   --vocab-size 151552
   --norm-epsilon 1e-05
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-10000}"
   --rotary-percent 0.5
   --untie-embeddings-and-output-weights
   --group-query-attention
   --num-query-groups 2
   --add-qkv-bias
   --post-self-attn-layernorm
   --post-mlp-layernorm
   --rotary-interleaved
)
