// RUN: k3c opt %s | k3c opt - | filecheck %s

// CHECK-LABEL: @inputs(
// CHECK: "kda.inputs"({{.*}} -> (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>)
func.func @inputs(%a: tensor<?x192xf32>, %b: tensor<?x64xf32>, %c: tensor<?x4xf32>, %d: tensor<192x4xf32>, %e: tensor<?x3x192xf32>, %f: tensor<4xf32>, %g: tensor<64xf32>, %h: !k3.batch) -> (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>) {
  %r:5 = "kda.inputs"(%a, %b, %c, %d, %e, %f, %g, %h) {chunk_tokens = 64 : i64, l2_eps = 9.9999999999999995E-7 : f64, lower_bound = -5.000000e+00 : f64, num_heads = 4 : i64, q_scale = 2.500000e-01 : f64} : (tensor<?x192xf32>, tensor<?x64xf32>, tensor<?x4xf32>, tensor<192x4xf32>, tensor<?x3x192xf32>, tensor<4xf32>, tensor<64xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>)
  return %r#0, %r#1, %r#2, %r#3, %r#4 : tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>
}

// CHECK-LABEL: @conv_state(
// CHECK: "kda.conv_state"({{.*}} -> tensor<?x3x192xf32>
func.func @conv_state(%a: tensor<?x192xf32>, %b: tensor<?x3x192xf32>, %c: !k3.batch) -> tensor<?x3x192xf32> {
  %r = "kda.conv_state"(%a, %b, %c) : (tensor<?x192xf32>, tensor<?x3x192xf32>, !k3.batch) -> tensor<?x3x192xf32>
  return %r : tensor<?x3x192xf32>
}

// CHECK-LABEL: @prepare(
// CHECK: "kda.prepare"({{.*}} -> (tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x64xf32>, tensor<?x4x16xf32>)
func.func @prepare(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>, %c: tensor<?x64xf32>, %d: tensor<?x64xf32>, %e: tensor<?x4xf32>, %f: !k3.batch) -> (tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x64xf32>, tensor<?x4x16xf32>) {
  %r:6 = "kda.prepare"(%a, %b, %c, %d, %e, %f) {chunk_tokens = 64 : i64, lower_bound = -5.000000e+00 : f64, num_heads = 4 : i64} : (tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x64xf32>, tensor<?x4xf32>, !k3.batch) -> (tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x64xf32>, tensor<?x4x16xf32>)
  return %r#0, %r#1, %r#2, %r#3, %r#4, %r#5 : tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x64xf32>, tensor<?x4x16xf32>
}

// CHECK-LABEL: @segment_maps(
// CHECK: "kda.segment_maps"({{.*}} -> (tensor<?x4x16xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>)
func.func @segment_maps(%a: tensor<?x4x64x16xf32>, %b: tensor<?x4x64x16xf32>, %c: tensor<?x4x64x16xf32>, %d: tensor<?x4x16xf32>, %e: !k3.batch) -> (tensor<?x4x16xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>) {
  %r:3 = "kda.segment_maps"(%a, %b, %c, %d, %e) : (tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x16xf32>, !k3.batch) -> (tensor<?x4x16xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1, %r#2 : tensor<?x4x16xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>
}

// CHECK-LABEL: @scan(
// CHECK: "kda.scan"({{.*}} -> tensor<?x4x16x16xf32>
func.func @scan(%a: tensor<?x4x16xf32>, %b: tensor<?x4x16x16xf32>, %c: tensor<?x4x16x16xf32>, %d: tensor<?x4x16x16xf32>, %e: !k3.batch) -> tensor<?x4x16x16xf32> {
  %r = "kda.scan"(%a, %b, %c, %d, %e) : (tensor<?x4x16xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>, !k3.batch) -> tensor<?x4x16x16xf32>
  return %r : tensor<?x4x16x16xf32>
}

// CHECK-LABEL: @output(
// CHECK: "kda.output"({{.*}} -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>)
func.func @output(%a: tensor<?x4x64x16xf32>, %b: tensor<?x4x64x16xf32>, %c: tensor<?x4x64x16xf32>, %d: tensor<?x4x64x16xf32>, %e: tensor<?x4x64x64xf32>, %f: tensor<?x4x16xf32>, %g: tensor<?x4x16x16xf32>, %h: tensor<?x4x16x16xf32>, %i: tensor<?x64xf32>, %j: tensor<16xf32>, %k: !k3.batch) -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>) {
  %r:2 = "kda.output"(%a, %b, %c, %d, %e, %f, %g, %h, %i, %j, %k) {eps = 1.000000e-05 : f64} : (tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x16xf32>, tensor<?x4x64x64xf32>, tensor<?x4x16xf32>, tensor<?x4x16x16xf32>, tensor<?x4x16x16xf32>, tensor<?x64xf32>, tensor<16xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1 : tensor<?x64xf32>, tensor<?x4x16x16xf32>
}

// CHECK-LABEL: @decode(
// CHECK: "kda.decode"({{.*}} -> (tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>)
func.func @decode(%a: tensor<?x192xf32>, %b: tensor<?x64xf32>, %c: tensor<?x4xf32>, %d: tensor<?x64xf32>, %e: tensor<192x4xf32>, %f: tensor<?x3x192xf32>, %g: tensor<4xf32>, %h: tensor<64xf32>, %i: tensor<16xf32>, %j: tensor<?x4x16x16xf32>, %k: !k3.batch) -> (tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>) {
  %r:3 = "kda.decode"(%a, %b, %c, %d, %e, %f, %g, %h, %i, %j, %k) {l2_eps = 9.9999999999999995E-7 : f64, lower_bound = -5.000000e+00 : f64, norm_eps = 1.000000e-05 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0>, num_heads = 4 : i64, q_scale = 2.500000e-01 : f64} : (tensor<?x192xf32>, tensor<?x64xf32>, tensor<?x4xf32>, tensor<?x64xf32>, tensor<192x4xf32>, tensor<?x3x192xf32>, tensor<4xf32>, tensor<64xf32>, tensor<16xf32>, tensor<?x4x16x16xf32>, !k3.batch) -> (tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1, %r#2 : tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>
}

// CHECK-LABEL: @decode_low_rank(
// CHECK: "kda.decode"({{.*}} -> (tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>)
func.func @decode_low_rank(%a: tensor<?x192xf32>, %b: tensor<?x6xf32>, %c: tensor<?x4xf32>, %d: tensor<?x64xf32>, %e: tensor<192x4xf32>, %f: tensor<?x3x192xf32>, %g: tensor<4xf32>, %h: tensor<64xf32>, %i: tensor<16xf32>, %j: tensor<?x4x16x16xf32>, %k: !k3.batch, %l: tensor<64x6xf32>) -> (tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>) {
  %r:3 = "kda.decode"(%a, %b, %c, %d, %e, %f, %g, %h, %i, %j, %k, %l) {l2_eps = 9.9999999999999995E-7 : f64, lower_bound = -5.000000e+00 : f64, norm_eps = 1.000000e-05 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1>, num_heads = 4 : i64, q_scale = 2.500000e-01 : f64} : (tensor<?x192xf32>, tensor<?x6xf32>, tensor<?x4xf32>, tensor<?x64xf32>, tensor<192x4xf32>, tensor<?x3x192xf32>, tensor<4xf32>, tensor<64xf32>, tensor<16xf32>, tensor<?x4x16x16xf32>, !k3.batch, tensor<64x6xf32>) -> (tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>)
  return %r#0, %r#1, %r#2 : tensor<?x64xf32>, tensor<?x3x192xf32>, tensor<?x4x16x16xf32>
}
