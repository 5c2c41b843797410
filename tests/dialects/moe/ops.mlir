// RUN: k3c opt %s | k3c opt - | filecheck %s

// CHECK-LABEL: @route_topk(
// CHECK: "moe.route_topk"({{.*}} -> (tensor<?x3xf32>, tensor<?x3xi32>)
func.func @route_topk(%a: tensor<?x10xf32>, %b: tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>) {
  %r:2 = "moe.route_topk"(%a, %b) {renormalize = true, scale = 1.000000e+00 : f64, top_k = 3 : i64} : (tensor<?x10xf32>, tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>)
  return %r#0, %r#1 : tensor<?x3xf32>, tensor<?x3xi32>
}

// CHECK-LABEL: @sort(
// CHECK: "moe.sort"({{.*}} -> (tensor<?xi32>, tensor<?xi32>, tensor<1xi32>)
func.func @sort(%a: tensor<?x3xi32>) -> (tensor<?xi32>, tensor<?xi32>, tensor<1xi32>) {
  %r:3 = "moe.sort"(%a) {block_rows = 64 : i64, num_experts = 10 : i64} : (tensor<?x3xi32>) -> (tensor<?xi32>, tensor<?xi32>, tensor<1xi32>)
  return %r#0, %r#1, %r#2 : tensor<?xi32>, tensor<?xi32>, tensor<1xi32>
}

// CHECK-LABEL: @route(
// CHECK: "moe.route"({{.*}} -> (tensor<?x3xf32>, tensor<?x3xi32>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>)
func.func @route(%a: tensor<?x10xf32>, %b: tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>) {
  %r:5 = "moe.route"(%a, %b) {block_rows = 64 : i64, num_experts = 10 : i64, renormalize = true, scale = 1.000000e+00 : f64, top_k = 3 : i64} : (tensor<?x10xf32>, tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>)
  return %r#0, %r#1, %r#2, %r#3, %r#4 : tensor<?x3xf32>, tensor<?x3xi32>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>
}

// CHECK-LABEL: @gate_up(
// CHECK: "moe.gate_up"({{.*}} -> tensor<?x32xf32>
func.func @gate_up(%a: tensor<?x32xf8E4M3FN>, %b: tensor<?xi32>, %c: tensor<?xi32>, %d: tensor<1xi32>, %e: tensor<10x32x16xi8>, %f: tensor<10x32x16xi8>, %g: tensor<?x1xi8>, %h: tensor<10x32x1xi8>, %i: tensor<10x32x1xi8>) -> tensor<?x32xf32> {
  %r = "moe.gate_up"(%a, %b, %c, %d, %e, %f, %g, %h, %i) {activation = "situ", beta = 4.000000e+00 : f64, block_rows = 64 : i64, format = "a8w4", linear_beta = 2.500000e+01 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1>, top_k = 3 : i64} : (tensor<?x32xf8E4M3FN>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>, tensor<10x32x16xi8>, tensor<10x32x16xi8>, tensor<?x1xi8>, tensor<10x32x1xi8>, tensor<10x32x1xi8>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

// CHECK-LABEL: @gate_up_mx(
// CHECK: "moe.gate_up_mx"({{.*}} -> (tensor<?x32xf8E4M3FN>, tensor<?x1xi8>)
func.func @gate_up_mx(%a: tensor<?x32xf8E4M3FN>, %b: tensor<?xi32>, %c: tensor<?xi32>, %d: tensor<1xi32>, %e: tensor<10x32x16xi8>, %f: tensor<10x32x16xi8>, %g: tensor<?x1xi8>, %h: tensor<10x32x1xi8>, %i: tensor<10x32x1xi8>) -> tensor<?x32xf8E4M3FN> {
  %r:2 = "moe.gate_up_mx"(%a, %b, %c, %d, %e, %f, %g, %h, %i) {activation = "situ", beta = 4.000000e+00 : f64, block_rows = 64 : i64, format = "a8w4", linear_beta = 2.500000e+01 : f64, top_k = 3 : i64} : (tensor<?x32xf8E4M3FN>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>, tensor<10x32x16xi8>, tensor<10x32x16xi8>, tensor<?x1xi8>, tensor<10x32x1xi8>, tensor<10x32x1xi8>) -> (tensor<?x32xf8E4M3FN>, tensor<?x1xi8>)
  return %r#0 : tensor<?x32xf8E4M3FN>
}

// CHECK-LABEL: @down(
// CHECK: "moe.down"({{.*}} -> tensor<?x32xf32>
func.func @down(%a: tensor<?x32xf8E4M3FN>, %b: tensor<?xi32>, %c: tensor<?xi32>, %d: tensor<1xi32>, %e: tensor<?x3xf32>, %f: tensor<10x32x16xi8>, %g: tensor<?x1xi8>, %h: tensor<10x32x1xi8>) -> tensor<?x32xf32> {
  %r = "moe.down"(%a, %b, %c, %d, %e, %f, %g, %h) {block_rows = 64 : i64, format = "a8w4", operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1>} : (tensor<?x32xf8E4M3FN>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>, tensor<?x3xf32>, tensor<10x32x16xi8>, tensor<?x1xi8>, tensor<10x32x1xi8>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

// CHECK-LABEL: @combine(
// CHECK: "moe.combine"({{.*}} -> tensor<?x32xf32>
func.func @combine(%a: tensor<?x32xf32>, %b: tensor<?x3xi32>, %c: tensor<32xf32>) -> tensor<?x32xf32> {
  %r = "moe.combine"(%a, %b, %c) {eps = 1.000000e-05 : f64, num_experts = 10 : i64, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<?x32xf32>, tensor<?x3xi32>, tensor<32xf32>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}
