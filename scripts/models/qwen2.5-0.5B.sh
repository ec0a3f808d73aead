# qwen2.5-0.5B, Qwen2ForCausalLM: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 24
   --hidden-size 896
   --ffn-hidden-size 4864
   --num-attention-heads 14
   --vocab-size 151936
   --norm-epsilon 1e-06
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
   --group-query-attention
   --num-query-groups 2
   --add-qkv-bias
)
