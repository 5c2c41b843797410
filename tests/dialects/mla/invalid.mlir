// RUN: k3c opt %s --split-input --expect-error | filecheck %s

// CHECK: mla.latent_write: kv_a: expected ?x40, found ?x36
func.func @latent_write(%a: tensor<?x36xf32>, %b: tensor<32xf32>, %c: tensor<?x64x40xf32>, %d: !k3.batch) -> tensor<?x64x40xf32> {
  %r = "mla.latent_write"(%a, %b, %c, %d) {eps = 9.9999999999999995E-7 : f64} : (tensor<?x36xf32>, tensor<32xf32>, tensor<?x64x40xf32>, !k3.batch) -> tensor<?x64x40xf32>
  return %r : tensor<?x64x40xf32>
}

// -----
// CHECK: mla.norm_write: q_weight: expected 24, found 20; norm_weight: expected at most 40 elements, found 48
func.func @norm_write(%a: tensor<?x24xf32>, %b: tensor<20xf32>, %c: tensor<?x40xf32>, %d: tensor<48xf32>, %e: tensor<?x64x40xf32>, %f: !k3.batch) -> (tensor<?x24xf32>, tensor<?x64x40xf32>) {
  %r:2 = "mla.norm_write"(%a, %b, %c, %d, %e, %f) {eps = 9.9999999999999995E-7 : f64} : (tensor<?x24xf32>, tensor<20xf32>, tensor<?x40xf32>, tensor<48xf32>, tensor<?x64x40xf32>, !k3.batch) -> (tensor<?x24xf32>, tensor<?x64x40xf32>)
  return %r#0, %r#1 : tensor<?x24xf32>, tensor<?x64x40xf32>
}

// -----
// CHECK: mla.gather: latent: expected ?x40, found ?x32
func.func @gather(%a: tensor<?x64x40xf32>, %b: !k3.batch) -> tensor<?x32xf32> {
  %r = "mla.gather"(%a, %b) : (tensor<?x64x40xf32>, !k3.batch) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

// -----
// CHECK: mla.prefill: q: expected ?x64, found ?x96; kv: expected ?x96, found ?x128
func.func @prefill(%a: tensor<?x96xf32>, %b: tensor<?x128xf32>, %c: tensor<?x40xf32>, %d: !k3.batch, %e: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "mla.prefill"(%a, %b, %c, %d, %e) {nope_dim = 8 : i64, num_heads = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1>, rope_dim = 8 : i64, scale = 0.20412414523193151 : f64, v_dim = 16 : i64} : (tensor<?x96xf32>, tensor<?x128xf32>, tensor<?x40xf32>, !k3.batch, tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: mla.prefill: gate: expected ?x64, found ?x32
func.func @prefill(%a: tensor<?x96xf32>, %b: tensor<?x128xf32>, %c: tensor<?x40xf32>, %d: !k3.batch, %e: tensor<?x32xf32>) -> tensor<?x64xf32> {
  %r = "mla.prefill"(%a, %b, %c, %d, %e) {nope_dim = 16 : i64, num_heads = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1>, rope_dim = 8 : i64, scale = 0.20412414523193151 : f64, v_dim = 16 : i64} : (tensor<?x96xf32>, tensor<?x128xf32>, tensor<?x40xf32>, !k3.batch, tensor<?x32xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: mla.absorb_q: q_latent: expected ?x128, found ?x160
func.func @absorb_q(%a: tensor<?x96xf32>, %b: tensor<128x32xf32>) -> tensor<?x160xf32> {
  %r = "mla.absorb_q"(%a, %b) {nope_dim = 16 : i64, num_heads = 4 : i64, rope_dim = 8 : i64} : (tensor<?x96xf32>, tensor<128x32xf32>) -> tensor<?x160xf32>
  return %r : tensor<?x160xf32>
}

// -----
// CHECK: mla.decode: split_tokens: expected a multiple of the page, 64, found 500
func.func @decode(%a: tensor<?x128xf32>, %b: tensor<?x96xf32>, %c: tensor<?x64x40xf32>, %d: !k3.batch) -> (tensor<?x?x4x32xf32>, tensor<?x?x4xf32>, tensor<?x?x4xf32>) {
  %r:3 = "mla.decode"(%a, %b, %c, %d) {num_heads = 4 : i64, rope_dim = 8 : i64, scale = 0.20412414523193151 : f64, split_tokens = 500 : i64} : (tensor<?x128xf32>, tensor<?x96xf32>, tensor<?x64x40xf32>, !k3.batch) -> (tensor<?x?x4x32xf32>, tensor<?x?x4xf32>, tensor<?x?x4xf32>)
  return %r#0, %r#1, %r#2 : tensor<?x?x4x32xf32>, tensor<?x?x4xf32>, tensor<?x?x4xf32>
}

// -----
// CHECK: mla.decode: scale: expected a positive number, found -0.2041241452319315
func.func @decode(%a: tensor<?x128xf32>, %b: tensor<?x96xf32>, %c: tensor<?x64x40xf32>, %d: !k3.batch) -> (tensor<?x?x4x32xf32>, tensor<?x?x4xf32>, tensor<?x?x4xf32>) {
  %r:3 = "mla.decode"(%a, %b, %c, %d) {num_heads = 4 : i64, rope_dim = 8 : i64, scale = -0.20412414523193151 : f64, split_tokens = 512 : i64} : (tensor<?x128xf32>, tensor<?x96xf32>, tensor<?x64x40xf32>, !k3.batch) -> (tensor<?x?x4x32xf32>, tensor<?x?x4xf32>, tensor<?x?x4xf32>)
  return %r#0, %r#1, %r#2 : tensor<?x?x4x32xf32>, tensor<?x?x4xf32>, tensor<?x?x4xf32>
}

// -----
// CHECK: mla.merge: top: expected ?x?x4, found ?x?x2
func.func @merge(%a: tensor<?x?x4x32xf32>, %b: tensor<?x?x2xf32>, %c: tensor<?x?x4xf32>, %d: !k3.batch) -> tensor<?x128xf32> {
  %r = "mla.merge"(%a, %b, %c, %d) {split_tokens = 512 : i64} : (tensor<?x?x4x32xf32>, tensor<?x?x2xf32>, tensor<?x?x4xf32>, !k3.batch) -> tensor<?x128xf32>
  return %r : tensor<?x128xf32>
}

// -----
// CHECK: mla.value_up: o: expected ?x32, found ?x64
func.func @value_up(%a: tensor<?x128xf32>, %b: tensor<128x32xf32>, %c: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "mla.value_up"(%a, %b, %c) {num_heads = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1>, v_dim = 8 : i64} : (tensor<?x128xf32>, tensor<128x32xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}
