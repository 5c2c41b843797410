// RUN: k3c opt %s --split-input --expect-error | filecheck %s

// CHECK: kda.inputs: chunk_tokens: expected 1 or a multiple of 16, found 24
func.func @inputs(%a: tensor<?x192xf32>, %b: tensor<?x64xf32>, %c: tensor<?x4xf32>, %d: tensor<192x4xf32>, %e: tensor<?x3x192xf32>, %f: tensor<4xf32>, %g: tensor<64xf32>, %h: !k3.batch) -> (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>) {
  %r:5 = "kda.inputs"(%a, %b, %c, %d, %e, %f, %g, %h) {chunk_tokens = 24 : i64, l2_eps = 9.9999999999999995E-7 : f64, lower_bound = -5.000000e+00 : f64, num_heads = 4 : i64, q_scale = 2.500000e-01 : f64} : (tensor<?x192xf32>, tensor<?x64xf32>, tensor<?x4xf32>, tensor<192x4xf32>, tensor<?x3x192xf32>, tensor<4xf32>, tensor<64xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>)
  return %r#0, %r#1, %r#2, %r#3, %r#4 : tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>
}

// -----
// CHECK: kda.inputs: dt_bias: expected 60, found 64; columns of qkv: expected 184, found 192; q: expected ?x60, found ?x64; k: expected ?x60, found ?x64; g: expected ?x60, found ?x64
func.func @inputs(%a: tensor<?x192xf32>, %b: tensor<?x60xf32>, %c: tensor<?x4xf32>, %d: tensor<192x4xf32>, %e: tensor<?x3x192xf32>, %f: tensor<4xf32>, %g: tensor<64xf32>, %h: !k3.batch) -> (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>) {
  %r:5 = "kda.inputs"(%a, %b, %c, %d, %e, %f, %g, %h) {chunk_tokens = 64 : i64, l2_eps = 9.9999999999999995E-7 : f64, lower_bound = -5.000000e+00 : f64, num_heads = 4 : i64, q_scale = 2.500000e-01 : f64} : (tensor<?x192xf32>, tensor<?x60xf32>, tensor<?x4xf32>, tensor<192x4xf32>, tensor<?x3x192xf32>, tensor<4xf32>, tensor<64xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>)
  return %r#0, %r#1, %r#2, %r#3, %r#4 : tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>
}

// -----
// CHECK: kda.inputs: lower_bound: expected a number in [-5, 0), found 1.0
func.func @inputs(%a: tensor<?x192xf32>, %b: tensor<?x64xf32>, %c: tensor<?x4xf32>, %d: tensor<192x4xf32>, %e: tensor<?x3x192xf32>, %f: tensor<4xf32>, %g: tensor<64xf32>, %h: !k3.batch) -> (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>) {
  %r:5 = "kda.inputs"(%a, %b, %c, %d, %e, %f, %g, %h) {chunk_tokens = 64 : i64, l2_eps = 9.9999999999999995E-7 : f64, lower_bound = 1.000000e+00 : f64, num_heads = 4 : i64, q_scale = 2.500000e-01 : f64} : (tensor<?x192xf32>, tensor<?x64xf32>, tensor<?x4xf32>, tensor<192x4xf32>, tensor<?x3x192xf32>, tensor<4xf32>, tensor<64xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>)
  return %r#0, %r#1, %r#2, %r#3, %r#4 : tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>
}

// -----
// CHECK: kda.conv_state: qkv: expected ?x192, found ?x190
func.func @conv_state(%a: tensor<?x190xf32>, %b: tensor<?x3x192xf32>, %c: !k3.batch) -> tensor<?x3x192xf32> {
  %r = "kda.conv_state"(%a, %b, %c) : (tensor<?x190xf32>, tensor<?x3x192xf32>, !k3.batch) -> tensor<?x3x192xf32>
  return %r : tensor<?x3x192xf32>
}

// -----
// CHECK: kda.prepare: w: expected ?x4x32x16, found ?x4x64x16; q_decayed: expected ?x4x32x16, found ?x4x64x16; k_tail: expected ?x4x32x16, found ?x4x64x16; u: expected ?x4x32x16, found ?x4x64x16; m: expected ?x4x32x32, found ?x4x64x64
func.func @prepare(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>, %c: tensor<?x64xf32>, %d: tensor<?x64xf32>, %e: tensor<?x4xf32>, %f: !k3.batch) -> (tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x64xf32>, tensor<?x4x16xf32>) {
  %r:6 = "kda.prepare"(%a, %b, %c, %d, %e, %f) {chunk_tokens = 32 : i64, lower_bound = -5.000000e+00 : f64, num_heads = 4 : i64} : (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>, !k3.batch) -> (tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x64xf32>, tensor<?x4x16xf32>)
  return %r#0, %r#1, %r#2, %r#3, %r#4, %r#5 : tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x64xf32>, tensor<?x4x16xf32>
}

// -----
// CHECK: kda.prepare: beta element type: expected one of f32, found bf16
func.func @prepare(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>, %c: tensor<?x64xf32>, %d: tensor<?x64xf32>, %e: tensor<?x4xbf16>, %f: !k3.batch) -> (tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x64xf32>, tensor<?x4x16xf32>) {
  %r:6 = "kda.prepare"(%a, %b, %c, %d, %e, %f) {chunk_tokens = 64 : i64, lower_bound = -5.000000e+00 : f64, num_heads = 4 : i64} : (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xbf16>, !k3.batch) -> (tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x64xf32>, tensor<?x4x16xf32>)
  return %r#0, %r#1, %r#2, %r#3, %r#4, %r#5 : tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x64xf32>, tensor<?x4x16xf32>
}

// -----
// CHECK: kda.segment_maps: gamma: expected ?x4x16, found ?x4x8
func.func @segment_maps(%a: tensor<?x4x64x16xf32>, %b: tensor<?x4x64x16xf32>, %c: tensor<?x4x64x16xf32>, %d: tensor<?x4x8xf32>, %e: !k3.batch) -> (tensor<?x4x16xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>) {
  %r:3 = "kda.segment_maps"(%a, %b, %c, %d, %e) : (tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x8xf32>, !k3.batch) -> (tensor<?x4x16xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1, %r#2 : tensor<?x4x16xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>
}

// -----
// CHECK: kda.scan: r: expected ?x4x16x16, found ?x4x16x8
func.func @scan(%a: tensor<?x4x16xf32>, %b: tensor<?x4x16x8xf32>, %c: tensor<?x4x16x16xf32>, %d: tensor<?x4x16x16xf32>, %e: !k3.batch) -> tensor<?x4x16x16xf32> {
  %r = "kda.scan"(%a, %b, %c, %d, %e) : (tensor<?x4x16xf32>, tensor<?x4x16x8xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>, !k3.batch) -> tensor<?x4x16x16xf32>
  return %r : tensor<?x4x16x16xf32>
}

// -----
// CHECK: kda.output: norm_weight: expected 16, found 8
func.func @output(%a: tensor<?x4x64x16xf32>, %b: tensor<?x4x64x16xf32>, %c: tensor<?x4x64x16xf32>, %d: tensor<?x4x64x16xf32>, %e: tensor<?x4x64x64xf32>, %f: tensor<?x4x16xf32>, %g: tensor<?x4x16x16xf32>, %h: tensor<?x4x16x16xf32>, %i: tensor<?x64xf32>, %j: tensor<8xf32>, %k: !k3.batch) -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>) {
  %r:2 = "kda.output"(%a, %b, %c, %d, %e, %f, %g, %h, %i, %j, %k) {eps = 1.000000e-05 : f64} : (tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x64xf32>, tensor<?x4x16xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>, tensor<?x64xf32>, tensor<8xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1 : tensor<?x64xf32>, tensor<?x4x16x16xf32>
}

// -----
// CHECK: kda.output: m: expected ?x4x64x64, found ?x4x64x32
func.func @output(%a: tensor<?x4x64x16xf32>, %b: tensor<?x4x64x16xf32>, %c: tensor<?x4x64x16xf32>, %d: tensor<?x4x64x16xf32>, %e: tensor<?x4x64x32xf32>, %f: tensor<?x4x16xf32>, %g: tensor<?x4x16x16xf32>, %h: tensor<?x4x16x16xf32>, %i: tensor<?x64xf32>, %j: tensor<16xf32>, %k: !k3.batch) -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>) {
  %r:2 = "kda.output"(%a, %b, %c, %d, %e, %f, %g, %h, %i, %j, %k) {eps = 1.000000e-05 : f64} : (tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x32xf32>, tensor<?x4x16xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>, tensor<?x64xf32>, tensor<16xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1 : tensor<?x64xf32>, tensor<?x4x16x16xf32>
}

// -----
// CHECK: kda.decode: beta: expected ?x2, found ?x4; a_log: expected 2, found 4; heads of the state: expected 2, found 4; f: expected ?x32, found ?x64; gate: expected ?x32, found ?x64; columns of qkv: expected 96, found 192; y: expected ?x32, found ?x64
func.func @decode(%a: tensor<?x192xf32>, %b: tensor<?x64xf32>, %c: tensor<?x4xf32>, %d: tensor<?x64xf32>, %e: tensor<192x4xf32>, %f: tensor<?x3x192xf32>, %g: tensor<4xf32>, %h: tensor<64xf32>, %i: tensor<16xf32>, %j: tensor<?x4x16x16xf32>, %k: !k3.batch) -> (tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>) {
  %r:3 = "kda.decode"(%a, %b, %c, %d, %e, %f, %g, %h, %i, %j, %k) {l2_eps = 9.9999999999999995E-7 : f64, lower_bound = -5.000000e+00 : f64, norm_eps = 1.000000e-05 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0>, num_heads = 2 : i64, q_scale = 2.500000e-01 : f64} : (tensor<?x192xf32>, tensor<?x64xf32>, tensor<?x4xf32>, tensor<?x64xf32>, tensor<192x4xf32>, tensor<?x3x192xf32>, tensor<4xf32>, tensor<64xf32>, tensor<16xf32>, tensor<?x4x16x16xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1, %r#2 : tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>
}

// -----
// CHECK: kda.decode: gate: expected ?x64, found ?x48
func.func @decode(%a: tensor<?x192xf32>, %b: tensor<?x64xf32>, %c: tensor<?x4xf32>, %d: tensor<?x48xf32>, %e: tensor<192x4xf32>, %f: tensor<?x3x192xf32>, %g: tensor<4xf32>, %h: tensor<64xf32>, %i: tensor<16xf32>, %j: tensor<?x4x16x16xf32>, %k: !k3.batch) -> (tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>) {
  %r:3 = "kda.decode"(%a, %b, %c, %d, %e, %f, %g, %h, %i, %j, %k) {l2_eps = 9.9999999999999995E-7 : f64, lower_bound = -5.000000e+00 : f64, norm_eps = 1.000000e-05 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0>, num_heads = 4 : i64, q_scale = 2.500000e-01 : f64} : (tensor<?x192xf32>, tensor<?x64xf32>, tensor<?x4xf32>, tensor<?x48xf32>, tensor<192x4xf32>, tensor<?x3x192xf32>, tensor<4xf32>, tensor<64xf32>, tensor<16xf32>, tensor<?x4x16x16xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1, %r#2 : tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>
}

// -----
// CHECK: kda.decode: f_weight: expected 64x6, found 64x5
func.func @decode(%a: tensor<?x192xf32>, %b: tensor<?x6xf32>, %c: tensor<?x4xf32>, %d: tensor<?x64xf32>, %e: tensor<192x4xf32>, %f: tensor<?x3x192xf32>, %g: tensor<4xf32>, %h: tensor<64xf32>, %i: tensor<16xf32>, %j: tensor<?x4x16x16xf32>, %k: !k3.batch, %l: tensor<64x5xf32>) -> (tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>) {
  %r:3 = "kda.decode"(%a, %b, %c, %d, %e, %f, %g, %h, %i, %j, %k, %l) {l2_eps = 9.9999999999999995E-7 : f64, lower_bound = -5.000000e+00 : f64, norm_eps = 1.000000e-05 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1>, num_heads = 4 : i64, q_scale = 2.500000e-01 : f64} : (tensor<?x192xf32>, tensor<?x6xf32>, tensor<?x4xf32>, tensor<?x64xf32>, tensor<192x4xf32>, tensor<?x3x192xf32>, tensor<4xf32>, tensor<64xf32>, tensor<16xf32>, tensor<?x4x16x16xf32>, !k3.batch, tensor<64x5xf32>) -> (tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1, %r#2 : tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>
}
