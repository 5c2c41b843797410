// RUN: k3c opt %s --split-input --expect-error | filecheck %s

// CHECK: k3.route: top_k: expected 1 to 10, found 11; weights: expected ?x11, found ?x3; ids: expected ?x11, found ?x3
func.func @route(%a: tensor<?x10xf32>, %b: tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>) {
  %r:2 = "k3.route"(%a, %b) {renormalize = true, scale = 1.000000e+00 : f64, top_k = 11 : i64} : (tensor<?x10xf32>, tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>)
  return %r#0, %r#1 : tensor<?x3xf32>, tensor<?x3xi32>
}

// -----
// CHECK: k3.experts: format: expected one of mxfp4, plain, found int4; s1 given: expected False, found True; s3 given: expected False, found True; s2 given: expected False, found True
func.func @experts(%a: tensor<?x32xf32>, %b: tensor<?x3xi32>, %c: tensor<?x3xf32>, %d: tensor<10x32x16xi8>, %e: tensor<10x32x16xi8>, %f: tensor<10x32x16xi8>, %g: tensor<10x32x1xi8>, %h: tensor<10x32x1xi8>, %i: tensor<10x32x1xi8>) -> tensor<?x32xf32> {
  %r = "k3.experts"(%a, %b, %c, %d, %e, %f, %g, %h, %i) {activation = "situ", beta = 4.000000e+00 : f64, format = "int4", linear_beta = 2.500000e+01 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1>} : (tensor<?x32xf32>, tensor<?x3xi32>, tensor<?x3xf32>, tensor<10x32x16xi8>, tensor<10x32x16xi8>, tensor<10x32x16xi8>, tensor<10x32x1xi8>, tensor<10x32x1xi8>, tensor<10x32x1xi8>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

// -----
// CHECK: k3.experts: beta: expected a positive number, found -4.0
func.func @experts(%a: tensor<?x32xf32>, %b: tensor<?x3xi32>, %c: tensor<?x3xf32>, %d: tensor<10x32x16xi8>, %e: tensor<10x32x16xi8>, %f: tensor<10x32x16xi8>, %g: tensor<10x32x1xi8>, %h: tensor<10x32x1xi8>, %i: tensor<10x32x1xi8>) -> tensor<?x32xf32> {
  %r = "k3.experts"(%a, %b, %c, %d, %e, %f, %g, %h, %i) {activation = "situ", beta = -4.000000e+00 : f64, format = "mxfp4", linear_beta = 2.500000e+01 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1>} : (tensor<?x32xf32>, tensor<?x3xi32>, tensor<?x3xf32>, tensor<10x32x16xi8>, tensor<10x32x16xi8>, tensor<10x32x16xi8>, tensor<10x32x1xi8>, tensor<10x32x1xi8>, tensor<10x32x1xi8>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

// -----
// CHECK: k3.experts: scale of w3: expected 10x32x1, found 10x32x2
func.func @experts(%a: tensor<?x32xf32>, %b: tensor<?x3xi32>, %c: tensor<?x3xf32>, %d: tensor<10x32x16xi8>, %e: tensor<10x32x16xi8>, %f: tensor<10x32x16xi8>, %g: tensor<10x32x1xi8>, %h: tensor<10x32x2xi8>, %i: tensor<10x32x1xi8>) -> tensor<?x32xf32> {
  %r = "k3.experts"(%a, %b, %c, %d, %e, %f, %g, %h, %i) {activation = "situ", beta = 4.000000e+00 : f64, format = "mxfp4", linear_beta = 2.500000e+01 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1>} : (tensor<?x32xf32>, tensor<?x3xi32>, tensor<?x3xf32>, tensor<10x32x16xi8>, tensor<10x32x16xi8>, tensor<10x32x16xi8>, tensor<10x32x1xi8>, tensor<10x32x2xi8>, tensor<10x32x1xi8>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

// -----
// CHECK: k3.rms_norm: weight: expected 64, found 63
func.func @rms_norm(%a: tensor<?x64xf32>, %b: tensor<63xf32>) -> tensor<?x64xf32> {
  %r = "k3.rms_norm"(%a, %b) {eps = 1.000000e-05 : f64} : (tensor<?x64xf32>, tensor<63xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.rms_norm: eps: expected a positive number, found 0.0
func.func @rms_norm(%a: tensor<?x64xf32>, %b: tensor<64xf32>) -> tensor<?x64xf32> {
  %r = "k3.rms_norm"(%a, %b) {eps = 0.000000e+00 : f64} : (tensor<?x64xf32>, tensor<64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.rms_norm: attribute epsilon: expected one of eps, part; attribute eps: expected a float, found none
func.func @rms_norm(%a: tensor<?x64xf32>, %b: tensor<64xf32>) -> tensor<?x64xf32> {
  %r = "k3.rms_norm"(%a, %b) {epsilon = 1.000000e-05 : f64} : (tensor<?x64xf32>, tensor<64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.gated_rms_norm: o: expected columns in 3 equal heads, found 64; num_heads * weight: expected 64, found 48
func.func @gated_rms_norm(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>, %c: tensor<16xf32>) -> tensor<?x64xf32> {
  %r = "k3.gated_rms_norm"(%a, %b, %c) {eps = 1.000000e-05 : f64, num_heads = 3 : i64} : (tensor<?x64xf32>, tensor<?x64xf32>, tensor<16xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.gated_rms_norm: num_heads * weight: expected 64, found 32
func.func @gated_rms_norm(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>, %c: tensor<8xf32>) -> tensor<?x64xf32> {
  %r = "k3.gated_rms_norm"(%a, %b, %c) {eps = 1.000000e-05 : f64, num_heads = 4 : i64} : (tensor<?x64xf32>, tensor<?x64xf32>, tensor<8xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.l2_norm: x: expected columns in 5 equal heads, found 64
func.func @l2_norm(%a: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.l2_norm"(%a) {eps = 9.9999999999999995E-7 : f64, num_heads = 5 : i64, scale = 2.500000e-01 : f64} : (tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.l2_norm: scale: expected a positive number, found -0.25
func.func @l2_norm(%a: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.l2_norm"(%a) {eps = 9.9999999999999995E-7 : f64, num_heads = 4 : i64, scale = -2.500000e-01 : f64} : (tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.add: b type: expected tensor<?x64xf32>, found tensor<?x64xbf16>
func.func @add(%a: tensor<?x64xf32>, %b: tensor<?x64xbf16>) -> tensor<?x64xf32> {
  %r = "k3.add"(%a, %b) : (tensor<?x64xf32>, tensor<?x64xbf16>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.attn_res_mix: norm: expected 64, found 32
func.func @attn_res_mix(%a: tensor<32xf32>, %b: tensor<64xf32>, %c: tensor<?x64xf32>, %d: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.attn_res_mix"(%a, %b, %c, %d) {eps = 1.000000e-05 : f64, operandSegmentSizes = array<i32: 1, 1, 2>} : (tensor<32xf32>, tensor<64xf32>, tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.silu: y type: expected tensor<?x191xf32>, found tensor<?x192xf32>
func.func @silu(%a: tensor<?x191xf32>) -> tensor<?x192xf32> {
  %r = "k3.silu"(%a) : (tensor<?x191xf32>) -> tensor<?x192xf32>
  return %r : tensor<?x192xf32>
}

// -----
// CHECK: k3.sigmoid: y element type: expected one of f32, found bf16
func.func @sigmoid(%a: tensor<?x4xf32>) -> tensor<?x4xbf16> {
  %r = "k3.sigmoid"(%a) : (tensor<?x4xf32>) -> tensor<?x4xbf16>
  return %r : tensor<?x4xbf16>
}

// -----
// CHECK: k3.mul_sigmoid: gate: expected ?x64, found ?x32
func.func @mul_sigmoid(%a: tensor<?x64xf32>, %b: tensor<?x32xf32>) -> tensor<?x64xf32> {
  %r = "k3.mul_sigmoid"(%a, %b) : (tensor<?x64xf32>, tensor<?x32xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.situ: linear_beta: expected a positive number, found -25.0
func.func @situ(%a: tensor<?x160xf32>, %b: tensor<?x160xf32>) -> tensor<?x160xf32> {
  %r = "k3.situ"(%a, %b) {beta = 4.000000e+00 : f64, linear_beta = -2.500000e+01 : f64} : (tensor<?x160xf32>, tensor<?x160xf32>) -> tensor<?x160xf32>
  return %r : tensor<?x160xf32>
}

// -----
// CHECK: k3.situ: up type: expected tensor<?x160xf32>, found tensor<?x80xf32>
func.func @situ(%a: tensor<?x160xf32>, %b: tensor<?x80xf32>) -> tensor<?x160xf32> {
  %r = "k3.situ"(%a, %b) {beta = 4.000000e+00 : f64, linear_beta = 2.500000e+01 : f64} : (tensor<?x160xf32>, tensor<?x80xf32>) -> tensor<?x160xf32>
  return %r : tensor<?x160xf32>
}

// -----
// CHECK: k3.silu_mul: up type: expected tensor<?x160xf32>, found tensor<?x80xf32>
func.func @silu_mul(%a: tensor<?x160xf32>, %b: tensor<?x80xf32>) -> tensor<?x160xf32> {
  %r = "k3.silu_mul"(%a, %b) : (tensor<?x160xf32>, tensor<?x80xf32>) -> tensor<?x160xf32>
  return %r : tensor<?x160xf32>
}

// -----
// CHECK: k3.short_conv: state: expected ?x2x192, found ?x3x192
func.func @short_conv(%a: tensor<?x192xf32>, %b: tensor<192x3xf32>, %c: tensor<?x3x192xf32>, %d: !k3.batch) -> (tensor<?x192xf32>, tensor<?x3x192xf32>) {
  %r:2 = "k3.short_conv"(%a, %b, %c, %d) : (tensor<?x192xf32>, tensor<192x3xf32>, tensor<?x3x192xf32>, !k3.batch) -> (tensor<?x192xf32>, tensor<?x3x192xf32>)
  return %r#0, %r#1 : tensor<?x192xf32>, tensor<?x3x192xf32>
}

// -----
// CHECK: k3.short_conv: weight element type: expected one of f32, found bf16
func.func @short_conv(%a: tensor<?x192xf32>, %b: tensor<192x4xbf16>, %c: tensor<?x3x192xf32>, %d: !k3.batch) -> (tensor<?x192xf32>, tensor<?x3x192xf32>) {
  %r:2 = "k3.short_conv"(%a, %b, %c, %d) : (tensor<?x192xf32>, tensor<192x4xbf16>, tensor<?x3x192xf32>, !k3.batch) -> (tensor<?x192xf32>, tensor<?x3x192xf32>)
  return %r#0, %r#1 : tensor<?x192xf32>, tensor<?x3x192xf32>
}

// -----
// CHECK: k3.kda_gate: lower_bound: expected a number in [-5, 0), found -6.0
func.func @kda_gate(%a: tensor<?x64xf32>, %b: tensor<4xf32>, %c: tensor<64xf32>) -> tensor<?x64xf32> {
  %r = "k3.kda_gate"(%a, %b, %c) {lower_bound = -6.000000e+00 : f64} : (tensor<?x64xf32>, tensor<4xf32>, tensor<64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.kda_gate: f: expected columns in 5 equal heads, found 64
func.func @kda_gate(%a: tensor<?x64xf32>, %b: tensor<5xf32>, %c: tensor<64xf32>) -> tensor<?x64xf32> {
  %r = "k3.kda_gate"(%a, %b, %c) {lower_bound = -5.000000e+00 : f64} : (tensor<?x64xf32>, tensor<5xf32>, tensor<64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.kda_recurrence: beta: expected ?x4, found ?x5
func.func @kda_recurrence(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>, %c: tensor<?x64xf32>, %d: tensor<?x64xf32>, %e: tensor<?x5xf32>, %f: tensor<?x4x16x16xf32>, %g: !k3.batch) -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>) {
  %r:2 = "k3.kda_recurrence"(%a, %b, %c, %d, %e, %f, %g) : (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x5xf32>, tensor<?x4x16x16xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1 : tensor<?x64xf32>, tensor<?x4x16x16xf32>
}

// -----
// CHECK: k3.kda_recurrence: q: expected ?x32, found ?x64; k: expected ?x32, found ?x64; g: expected ?x32, found ?x64; new_state type: expected tensor<?x4x16x8xf32>, found tensor<?x4x16x16xf32>
func.func @kda_recurrence(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>, %c: tensor<?x64xf32>, %d: tensor<?x64xf32>, %e: tensor<?x4xf32>, %f: tensor<?x4x16x8xf32>, %g: !k3.batch) -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>) {
  %r:2 = "k3.kda_recurrence"(%a, %b, %c, %d, %e, %f, %g) : (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>, tensor<?x4x16x8xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1 : tensor<?x64xf32>, tensor<?x4x16x16xf32>
}

// -----
// CHECK: k3.mla_cache_write: cache row: expected 48, found 40
func.func @mla_cache_write(%a: tensor<?x32xf32>, %b: tensor<?x16xf32>, %c: tensor<?x64x40xf32>, %d: !k3.batch) -> tensor<?x64x40xf32> {
  %r = "k3.mla_cache_write"(%a, %b, %c, %d) : (tensor<?x32xf32>, tensor<?x16xf32>, tensor<?x64x40xf32>, !k3.batch) -> tensor<?x64x40xf32>
  return %r : tensor<?x64x40xf32>
}

// -----
// CHECK: k3.mla_attention: rows of kv_b: expected 96, found 128; o: expected ?x32, found ?x64
func.func @mla_attention(%a: tensor<?x96xf32>, %b: tensor<128x32xf32>, %c: tensor<?x64x40xf32>, %d: !k3.batch) -> tensor<?x64xf32> {
  %r = "k3.mla_attention"(%a, %b, %c, %d) {nope_dim = 16 : i64, num_heads = 4 : i64, rope_dim = 8 : i64, scale = 0.20412414523193151 : f64, v_dim = 8 : i64} : (tensor<?x96xf32>, tensor<128x32xf32>, tensor<?x64x40xf32>, !k3.batch) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.mla_attention: q: expected ?x80, found ?x96; cache row: expected 36, found 40
func.func @mla_attention(%a: tensor<?x96xf32>, %b: tensor<128x32xf32>, %c: tensor<?x64x40xf32>, %d: !k3.batch) -> tensor<?x64xf32> {
  %r = "k3.mla_attention"(%a, %b, %c, %d) {nope_dim = 16 : i64, num_heads = 4 : i64, rope_dim = 4 : i64, scale = 0.20412414523193151 : f64, v_dim = 16 : i64} : (tensor<?x96xf32>, tensor<128x32xf32>, tensor<?x64x40xf32>, !k3.batch) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.weight: source: expected exactly one of tensor, concat, stack, reshape, transpose, pad, found {'file': 'x'}
func.func @weight() -> tensor<211x64xf32> {
  %r = "k3.weight"() {param = "embed_tokens", source = {concat = [{file = "x"}], axis = 0 : i64}} : () -> tensor<211x64xf32>
  return %r : tensor<211x64xf32>
}

// -----
// CHECK: k3.weight: value: expected a static shape, found tensor<?x64xf32>
func.func @weight() -> tensor<?x64xf32> {
  %r = "k3.weight"() {param = "embed_tokens", source = {tensor = "model.embed_tokens.weight"}} : () -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.embed: tokens element type: expected one of i32, found f32
func.func @embed(%a: tensor<?xf32>, %b: tensor<211x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.embed"(%a, %b) : (tensor<?xf32>, tensor<211x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.embed: y: expected ?x32, found ?x64
func.func @embed(%a: tensor<?xi32>, %b: tensor<211x32xf32>) -> tensor<?x64xf32> {
  %r = "k3.embed"(%a, %b) : (tensor<?xi32>, tensor<211x32xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.linear: columns of x: expected 48, found 32
func.func @linear(%a: tensor<?x32xf32>, %b: tensor<64x48xf32>, %c: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.linear"(%a, %b, %c) {epilogue = "add", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<?x32xf32>, tensor<64x48xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.linear: epilogue: expected one of none, add, found mul; residual given: expected False, found True
func.func @linear(%a: tensor<?x32xf32>, %b: tensor<64x32xf32>, %c: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.linear"(%a, %b, %c) {epilogue = "mul", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<?x32xf32>, tensor<64x32xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.linear: residual given: expected False, found True
func.func @linear(%a: tensor<?x32xf32>, %b: tensor<64x32xf32>, %c: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.linear"(%a, %b, %c) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<?x32xf32>, tensor<64x32xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.gather_rows: y type: expected tensor<?x32xf32>, found tensor<?x64xf32>
func.func @gather_rows(%a: tensor<?x32xf32>, %b: !k3.batch) -> tensor<?x64xf32> {
  %r = "k3.gather_rows"(%a, %b) : (tensor<?x32xf32>, !k3.batch) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.gather_rows: batch: expected a k3.batch, found tensor<?xi32>
func.func @gather_rows(%a: tensor<?x64xf32>, %b: tensor<?xi32>) -> tensor<?x64xf32> {
  %r = "k3.gather_rows"(%a, %b) : (tensor<?x64xf32>, tensor<?xi32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.argmax: token element type: expected one of i32, found f32
func.func @argmax(%a: tensor<?x211xf32>) -> tensor<?xf32> {
  %r = "k3.argmax"(%a) : (tensor<?x211xf32>) -> tensor<?xf32>
  return %r : tensor<?xf32>
}

// -----
// CHECK: k3.step_metadata: page_tokens: expected at least 1, found 0
func.func @step_metadata(%a: tensor<?xi32>, %b: !k3.batch) -> (tensor<?xi32>, !k3.batch) {
  %r:2 = "k3.step_metadata"(%a, %b) {page_tokens = 0 : i64} : (tensor<?xi32>, !k3.batch) -> (tensor<?xi32>, !k3.batch)
  return %r#0, %r#1 : tensor<?xi32>, !k3.batch
}

// -----
// CHECK: k3.sample: logits element type: expected one of f32, found bf16
func.func @sample(%a: tensor<?x211xbf16>, %b: !k3.batch) -> tensor<?xi32> {
  %r = "k3.sample"(%a, %b) : (tensor<?x211xbf16>, !k3.batch) -> tensor<?xi32>
  return %r : tensor<?xi32>
}

// -----
// CHECK: k3.columns: offset: expected 64 columns inside 192, found offset 129
func.func @columns(%a: tensor<?x192xf32>) -> tensor<?x64xf32> {
  %r = "k3.columns"(%a) {offset = 129 : i64} : (tensor<?x192xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// -----
// CHECK: k3.concat: y: expected ?x192, found ?x128
func.func @concat(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>, %c: tensor<?x64xf32>) -> tensor<?x128xf32> {
  %r = "k3.concat"(%a, %b, %c) {operandSegmentSizes = array<i32: 3>} : (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x128xf32>
  return %r : tensor<?x128xf32>
}

// -----
// CHECK: k3.gated_linear: beta, linear_beta: expected none with activation silu
func.func @gated_linear(%a: tensor<?x8xf32>, %b: tensor<12x8xf32>) -> tensor<?x6xf32> {
  %r = "k3.gated_linear"(%a, %b) {activation = "silu", beta = 4.000000e+00 : f64} : (tensor<?x8xf32>, tensor<12x8xf32>) -> tensor<?x6xf32>
  return %r : tensor<?x6xf32>
}

// -----
// CHECK: k3.norm_linear: norm_weight: expected 8, found 4; weight: expected equal parts of 8 columns, found 3; residual: expected ?x6, found ?x5
func.func @norm_linear(%a: tensor<?x8xf32>, %b: tensor<4xf32>, %c: tensor<6x3xf32>, %d: tensor<?x5xf32>) -> tensor<?x6xf32> {
  %r = "k3.norm_linear"(%a, %b, %c, %d) {eps = 1.000000e-05 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1>, part = "rank"} : (tensor<?x8xf32>, tensor<4xf32>, tensor<6x3xf32>, tensor<?x5xf32>) -> tensor<?x6xf32>
  return %r : tensor<?x6xf32>
}
