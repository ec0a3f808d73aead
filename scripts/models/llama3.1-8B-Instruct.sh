# llama3.1-8B-Instruct, LlamaForCausalLM: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 32
   --hidden-size 4096
   --ffn-hidden-size 14336
   --num-attention-heads 32
   --kv-channels 128
   --vocab-size 128256
   --max-position-embeddings 131072
   --norm-epsilon 1e-05
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-500000}"
   --untie-embeddings-and-output-weights
   --group-query-attention
   --num-query-groups 8
   --use-rope-scaling
   --rotary-scaling-factor 8.0
)
