// RUN: k3c opt %s | k3c opt - | filecheck %s

// CHECK-LABEL: @route(
// CHECK: "k3.route"({{.*}} -> (tensor<?x3xf32>, tensor<?x3xi32>)
func.func @route(%a: tensor<?x10xf32>, %b: tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>) {
  %r:2 = "k3.route"(%a, %b) {renormalize = true, scale = 1.000000e+00 : f64, top_k = 3 : i64} : (tensor<?x10xf32>, tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>)
  return %r#0, %r#1 : tensor<?x3xf32>, tensor<?x3xi32>
}

// CHECK-LABEL: @experts(
// CHECK: "k3.experts"({{.*}} -> tensor<?x32xf32>
func.func @experts(%a: tensor<?x32xf32>, %b: tensor<?x3xi32>, %c: tensor<?x3xf32>, %d: tensor<10x32x16xi8>, %e: tensor<10x32x16xi8>, %f: tensor<10x32x16xi8>, %g: tensor<10x32x1xi8>, %h: tensor<10x32x1xi8>, %i: tensor<10x32x1xi8>) -> tensor<?x32xf32> {
  %r = "k3.experts"(%a, %b, %c, %d, %e, %f, %g, %h, %i) {activation = "situ", beta = 4.000000e+00 : f64, format = "mxfp4", linear_beta = 2.500000e+01 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1>} : (tensor<?x32xf32>, tensor<?x3xi32>, tensor<?x3xf32>, tensor<10x32x16xi8>, tensor<10x32x16xi8>, tensor<10x32x16xi8>, tensor<10x32x1xi8>, tensor<10x32x1xi8>, tensor<10x32x1xi8>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

// CHECK-LABEL: @rms_norm(
// CHECK: "k3.rms_norm"({{.*}} -> tensor<?x64xf32>
func.func @rms_norm(%a: tensor<?x64xf32>, %b: tensor<64xf32>) -> tensor<?x64xf32> {
  %r = "k3.rms_norm"(%a, %b) {eps = 1.000000e-05 : f64} : (tensor<?x64xf32>, tensor<64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @gated_rms_norm(
// CHECK: "k3.gated_rms_norm"({{.*}} -> tensor<?x64xf32>
func.func @gated_rms_norm(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>, %c: tensor<16xf32>) -> tensor<?x64xf32> {
  %r = "k3.gated_rms_norm"(%a, %b, %c) {eps = 1.000000e-05 : f64, num_heads = 4 : i64} : (tensor<?x64xf32>, tensor<?x64xf32>, tensor<16xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @l2_norm(
// CHECK: "k3.l2_norm"({{.*}} -> tensor<?x64xf32>
func.func @l2_norm(%a: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.l2_norm"(%a) {eps = 9.9999999999999995E-7 : f64, num_heads = 4 : i64, scale = 2.500000e-01 : f64} : (tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @add(
// CHECK: "k3.add"({{.*}} -> tensor<?x64xf32>
func.func @add(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.add"(%a, %b) : (tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @attn_res_mix(
// CHECK: "k3.attn_res_mix"({{.*}} -> tensor<?x64xf32>
func.func @attn_res_mix(%a: tensor<64xf32>, %b: tensor<64xf32>, %c: tensor<?x64xf32>, %d: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.attn_res_mix"(%a, %b, %c, %d) {eps = 1.000000e-05 : f64, operandSegmentSizes = array<i32: 1, 1, 2>} : (tensor<64xf32>, tensor<64xf32>, tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @silu(
// CHECK: "k3.silu"({{.*}} -> tensor<?x192xf32>
func.func @silu(%a: tensor<?x192xf32>) -> tensor<?x192xf32> {
  %r = "k3.silu"(%a) : (tensor<?x192xf32>) -> tensor<?x192xf32>
  return %r : tensor<?x192xf32>
}

// CHECK-LABEL: @sigmoid(
// CHECK: "k3.sigmoid"({{.*}} -> tensor<?x4xf32>
func.func @sigmoid(%a: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %r = "k3.sigmoid"(%a) : (tensor<?x4xf32>) -> tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}

// CHECK-LABEL: @mul_sigmoid(
// CHECK: "k3.mul_sigmoid"({{.*}} -> tensor<?x64xf32>
func.func @mul_sigmoid(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.mul_sigmoid"(%a, %b) : (tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @situ(
// CHECK: "k3.situ"({{.*}} -> tensor<?x160xf32>
func.func @situ(%a: tensor<?x160xf32>, %b: tensor<?x160xf32>) -> tensor<?x160xf32> {
  %r = "k3.situ"(%a, %b) {beta = 4.000000e+00 : f64, linear_beta = 2.500000e+01 : f64} : (tensor<?x160xf32>, tensor<?x160xf32>) -> tensor<?x160xf32>
  return %r : tensor<?x160xf32>
}

// CHECK-LABEL: @silu_mul(
// CHECK: "k3.silu_mul"({{.*}} -> tensor<?x160xf32>
func.func @silu_mul(%a: tensor<?x160xf32>, %b: tensor<?x160xf32>) -> tensor<?x160xf32> {
  %r = "k3.silu_mul"(%a, %b) : (tensor<?x160xf32>, tensor<?x160xf32>) -> tensor<?x160xf32>
  return %r : tensor<?x160xf32>
}

// CHECK-LABEL: @short_conv(
// CHECK: "k3.short_conv"({{.*}} -> (tensor<?x192xf32>, tensor<?x3x192xf32>)
func.func @short_conv(%a: tensor<?x192xf32>, %b: tensor<192x4xf32>, %c: tensor<?x3x192xf32>, %d: !k3.batch) -> (tensor<?x192xf32>, tensor<?x3x192xf32>) {
  %r:2 = "k3.short_conv"(%a, %b, %c, %d) : (tensor<?x192xf32>, tensor<192x4xf32>, tensor<?x3x192xf32>, !k3.batch) -> (tensor<?x192xf32>, tensor<?x3x192xf32>)
  return %r#0, %r#1 : tensor<?x192xf32>, tensor<?x3x192xf32>
}

// CHECK-LABEL: @kda_gate(
// CHECK: "k3.kda_gate"({{.*}} -> tensor<?x64xf32>
func.func @kda_gate(%a: tensor<?x64xf32>, %b: tensor<4xf32>, %c: tensor<64xf32>) -> tensor<?x64xf32> {
  %r = "k3.kda_gate"(%a, %b, %c) {lower_bound = -5.000000e+00 : f64} : (tensor<?x64xf32>, tensor<4xf32>, tensor<64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @kda_recurrence(
// CHECK: "k3.kda_recurrence"({{.*}} -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>)
func.func @kda_recurrence(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>, %c: tensor<?x64xf32>, %d: tensor<?x64xf32>, %e: tensor<?x4xf32>, %f: tensor<?x4x16x16xf32>, %g: !k3.batch) -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>) {
  %r:2 = "k3.kda_recurrence"(%a, %b, %c, %d, %e, %f, %g) : (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>, tensor<?x4x16x16xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1 : tensor<?x64xf32>, tensor<?x4x16x16xf32>
}

// CHECK-LABEL: @mla_cache_write(
// CHECK: "k3.mla_cache_write"({{.*}} -> tensor<?x64x40xf32>
func.func @mla_cache_write(%a: tensor<?x32xf32>, %b: tensor<?x8xf32>, %c: tensor<?x64x40xf32>, %d: !k3.batch) -> tensor<?x64x40xf32> {
  %r = "k3.mla_cache_write"(%a, %b, %c, %d) : (tensor<?x32xf32>, tensor<?x8xf32>, tensor<?x64x40xf32>, !k3.batch) -> tensor<?x64x40xf32>
  return %r : tensor<?x64x40xf32>
}

// CHECK-LABEL: @mla_attention(
// CHECK: "k3.mla_attention"({{.*}} -> tensor<?x64xf32>
func.func @mla_attention(%a: tensor<?x96xf32>, %b: tensor<128x32xf32>, %c: tensor<?x64x40xf32>, %d: !k3.batch) -> tensor<?x64xf32> {
  %r = "k3.mla_attention"(%a, %b, %c, %d) {nope_dim = 16 : i64, num_heads = 4 : i64, rope_dim = 8 : i64, scale = 0.20412414523193151 : f64, v_dim = 16 : i64} : (tensor<?x96xf32>, tensor<128x32xf32>, tensor<?x64x40xf32>, !k3.batch) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @weight(
// CHECK: "k3.weight"({{.*}} -> tensor<211x64xf32>
func.func @weight() -> tensor<211x64xf32> {
  %r = "k3.weight"() {param = "embed_tokens", source = {tensor = "model.embed_tokens.weight"}} : () -> tensor<211x64xf32>
  return %r : tensor<211x64xf32>
}

// CHECK-LABEL: @embed(
// CHECK: "k3.embed"({{.*}} -> tensor<?x64xf32>
func.func @embed(%a: tensor<?xi32>, %b: tensor<211x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.embed"(%a, %b) : (tensor<?xi32>, tensor<211x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @linear(
// CHECK: "k3.linear"({{.*}} -> tensor<?x64xf32>
func.func @linear(%a: tensor<?x32xf32>, %b: tensor<64x32xf32>, %c: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "k3.linear"(%a, %b, %c) {epilogue = "add", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<?x32xf32>, tensor<64x32xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @gather_rows(
// CHECK: "k3.gather_rows"({{.*}} -> tensor<?x64xf32>
func.func @gather_rows(%a: tensor<?x64xf32>, %b: !k3.batch) -> tensor<?x64xf32> {
  %r = "k3.gather_rows"(%a, %b) : (tensor<?x64xf32>, !k3.batch) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @argmax(
// CHECK: "k3.argmax"({{.*}} -> tensor<?xi32>
func.func @argmax(%a: tensor<?x211xf32>) -> tensor<?xi32> {
  %r = "k3.argmax"(%a) : (tensor<?x211xf32>) -> tensor<?xi32>
  return %r : tensor<?xi32>
}

// CHECK-LABEL: @sample(
// CHECK: "k3.sample"({{.*}} -> tensor<?xi32>
func.func @sample(%a: tensor<?x211xf32>, %b: !k3.batch) -> tensor<?xi32> {
  %r = "k3.sample"(%a, %b) : (tensor<?x211xf32>, !k3.batch) -> tensor<?xi32>
  return %r : tensor<?xi32>
}

// CHECK-LABEL: @step_metadata(
// CHECK: "k3.step_metadata"({{.*}} -> (tensor<?xi32>, !k3.batch)
func.func @step_metadata(%a: tensor<?xi32>, %b: !k3.batch) -> (tensor<?xi32>, !k3.batch) {
  %r:2 = "k3.step_metadata"(%a, %b) {page_tokens = 64 : i64} : (tensor<?xi32>, !k3.batch) -> (tensor<?xi32>, !k3.batch)
  return %r#0, %r#1 : tensor<?xi32>, !k3.batch
}

// CHECK-LABEL: @columns(
// CHECK: "k3.columns"({{.*}} -> tensor<?x64xf32>
func.func @columns(%a: tensor<?x192xf32>) -> tensor<?x64xf32> {
  %r = "k3.columns"(%a) {offset = 0 : i64} : (tensor<?x192xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @concat(
// CHECK: "k3.concat"({{.*}} -> tensor<?x192xf32>
func.func @concat(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>, %c: tensor<?x64xf32>) -> tensor<?x192xf32> {
  %r = "k3.concat"(%a, %b, %c) {operandSegmentSizes = array<i32: 3>} : (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x192xf32>
  return %r : tensor<?x192xf32>
}

// CHECK-LABEL: @gated_linear(
// CHECK: "k3.gated_linear"({{.*}} -> tensor<?x6xf32>
func.func @gated_linear(%a: tensor<?x8xf32>, %b: tensor<12x8xf32>) -> tensor<?x6xf32> {
  %r = "k3.gated_linear"(%a, %b) {activation = "situ", beta = 4.000000e+00 : f64} : (tensor<?x8xf32>, tensor<12x8xf32>) -> tensor<?x6xf32>
  return %r : tensor<?x6xf32>
}

// CHECK-LABEL: @norm_linear(
// CHECK: "k3.norm_linear"({{.*}} -> tensor<?x6xf32>
func.func @norm_linear(%a: tensor<?x8xf32>, %b: tensor<8xf32>, %c: tensor<6x4xf32>, %d: tensor<?x6xf32>) -> tensor<?x6xf32> {
  %r = "k3.norm_linear"(%a, %b, %c, %d) {eps = 1.000000e-05 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1>, part = "rank"} : (tensor<?x8xf32>, tensor<8xf32>, tensor<6x4xf32>, tensor<?x6xf32>) -> tensor<?x6xf32>
  return %r : tensor<?x6xf32>
}
