// RUN: k3c opt %s -p fuse-latent-write | filecheck %s --check-prefix=WRITE
// RUN: k3c opt %s -p convert-mla-expanded | filecheck %s --check-prefix=EXPAND
// RUN: k3c opt %s -p convert-mla-expanded,fuse-gate | filecheck %s --check-prefix=GATE
// RUN: k3c opt %s -p "convert-mla-absorbed{split-tokens=128},fuse-gate" | filecheck %s --check-prefix=ABSORB

// WRITE-NOT: k3.rms_norm
// WRITE: %[[C:.*]] = "mla.latent_write"(%arg1, %arg2, %arg5, %arg6) {eps = 9.9{{.*}}E-7 : f64}
// WRITE: "k3.mla_attention"(%arg0, %arg4, %[[C]], %arg6)

// EXPAND: %[[L:.*]] = "mla.gather"(%[[C:.*]], %arg6) : (tensor<?x16x10xf32>, !k3.batch) -> tensor<?x10xf32>
// EXPAND-NEXT: %[[V:.*]] = "k3.columns"(%[[L]]) {offset = 0 : i64} : (tensor<?x10xf32>) -> tensor<?x8xf32>
// EXPAND-NEXT: %[[KV:.*]] = "k3.linear"(%[[V]], %arg4)
// EXPAND-NEXT: %[[O:.*]] = "mla.prefill"(%arg0, %[[KV]], %[[L]], %arg6) {nope_dim = 4 : i64, num_heads = 2 : i64, {{.*}}, rope_dim = 2 : i64, scale = 0.40{{.*}}, v_dim = 6 : i64}
// EXPAND-NEXT: "k3.mul_sigmoid"(%[[O]], %arg3)

// GATE-NOT: k3.mul_sigmoid
// GATE: "mla.prefill"(%arg0, %{{.*}}, %{{.*}}, %arg6, %arg3)

// ABSORB: %[[Q:.*]] = "mla.absorb_q"(%arg0, %arg4) {nope_dim = 4 : i64, num_heads = 2 : i64, rope_dim = 2 : i64} : (tensor<?x12xf32>, tensor<20x8xf32>) -> tensor<?x16xf32>
// ABSORB-NEXT: %[[P:.*]]:3 = "mla.decode"(%[[Q]], %arg0, %{{.*}}, %arg6) {num_heads = 2 : i64, rope_dim = 2 : i64, scale = 0.40{{.*}}, split_tokens = 128 : i64}
// ABSORB-NEXT: %[[M:.*]] = "mla.merge"(%[[P]]#0, %[[P]]#1, %[[P]]#2, %arg6) {split_tokens = 128 : i64}
// ABSORB-NEXT: %[[O:.*]] = "mla.value_up"(%[[M]], %arg4, %arg3) {num_heads = 2 : i64, {{.*}}, v_dim = 6 : i64}
// ABSORB-NEXT: return %[[O]]

func.func @mla(
    %q: tensor<?x12xf32> {k3.name = "q"}, %kv_a: tensor<?x10xf32> {k3.name = "kv_a"},
    %norm: tensor<8xf32> {k3.name = "norm"}, %gate: tensor<?x12xf32> {k3.name = "gate"},
    %kv_b: tensor<20x8xf32> {k3.name = "kv_b"}, %cache: tensor<?x16x10xf32> {k3.name = "cache"},
    %batch: !k3.batch {k3.name = "batch"}) -> (tensor<?x12xf32>, tensor<?x16x10xf32>) {
  %c = "k3.columns"(%kv_a) {offset = 0 : i64} : (tensor<?x10xf32>) -> tensor<?x8xf32>
  %kp = "k3.columns"(%kv_a) {offset = 8 : i64} : (tensor<?x10xf32>) -> tensor<?x2xf32>
  %n = "k3.rms_norm"(%c, %norm) {eps = 1.0e-6 : f64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %w = "k3.mla_cache_write"(%n, %kp, %cache, %batch) : (tensor<?x8xf32>, tensor<?x2xf32>, tensor<?x16x10xf32>, !k3.batch) -> tensor<?x16x10xf32>
  %o = "k3.mla_attention"(%q, %kv_b, %w, %batch) {num_heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 2 : i64, v_dim = 6 : i64, scale = 0.408248290464 : f64} : (tensor<?x12xf32>, tensor<20x8xf32>, tensor<?x16x10xf32>, !k3.batch) -> tensor<?x12xf32>
  %y = "k3.mul_sigmoid"(%o, %gate) : (tensor<?x12xf32>, tensor<?x12xf32>) -> tensor<?x12xf32>
  return %y, %w : tensor<?x12xf32>, tensor<?x16x10xf32>
}
