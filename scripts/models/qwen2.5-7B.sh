# qwen2.5-7B, Qwen2ForCausalLM: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 28
   --hidden-size 3584
   --ffn-hidden-size 18944
   --num-attention-heads 28
   --vocab-size 152064
   --norm-epsilon 1e-06
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
   --untie-embeddings-and-output-weights
   --group-query-attention
   --num-query-groups 4
   --add-qkv-bias
)
