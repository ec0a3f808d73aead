# qwen3-4B, Qwen3ForCausalLM: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 36
   --hidden-size 2560
   --ffn-hidden-size 9728
   --num-attention-heads 32
   --kv-channels 128
   --vocab-size 151936
   --norm-epsilon 1e-06
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
   --group-query-attention
   --num-query-groups 8
   --qk-layernorm
)
