# qwen2.5-32B, Qwen2ForCausalLM: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 64
   --hidden-size 5120
   --ffn-hidden-size 27648
   --num-attention-heads 40
   --vocab-size 152064
   --norm-epsilon 1e-05
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
   --untie-embeddings-and-output-weights
   --group-query-attention
   --num-query-groups 8
   --add-qkv-bias
)
