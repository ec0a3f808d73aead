# qwen3-0.6B, Qwen3ForCausalLM: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 28
   --hidden-size 1024
   --ffn-hidden-size 3072
   --num-attention-heads 16
   --kv-channels 128
   --vocab-size 151936
   --norm-epsilon 1e-06
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
   --group-query-attention
   --num-query-groups 8
   --qk-layernorm
)
