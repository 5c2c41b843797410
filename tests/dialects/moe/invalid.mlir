// RUN: k3c opt %s --split-input --expect-error | filecheck %s

// CHECK: moe.route_topk: top_k: expected 1 to 10, found 0; weights: expected ?x0, found ?x3; ids: expected ?x0, found ?x3
func.func @route_topk(%a: tensor<?x10xf32>, %b: tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>) {
  %r:2 = "moe.route_topk"(%a, %b) {renormalize = true, scale = 1.000000e+00 : f64, top_k = 0 : i64} : (tensor<?x10xf32>, tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>)
  return %r#0, %r#1 : tensor<?x3xf32>, tensor<?x3xi32>
}

// -----
// CHECK: moe.sort: block_rows: expected a power of two from 8 on, found 48
func.func @sort(%a: tensor<?x3xi32>) -> (tensor<?xi32>, tensor<?xi32>, tensor<1xi32>) {
  %r:3 = "moe.sort"(%a) {block_rows = 48 : i64, num_experts = 10 : i64} : (tensor<?x3xi32>) -> (tensor<?xi32>, tensor<?xi32>, tensor<1xi32>)
  return %r#0, %r#1, %r#2 : tensor<?xi32>, tensor<?xi32>, tensor<1xi32>
}

// -----
// CHECK: moe.route: block_rows: expected a power of two from 8 on, found 48
func.func @route(%a: tensor<?x10xf32>, %b: tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>) {
  %r:5 = "moe.route"(%a, %b) {block_rows = 48 : i64, num_experts = 10 : i64, renormalize = true, scale = 1.000000e+00 : f64, top_k = 3 : i64} : (tensor<?x10xf32>, tensor<10xf32>) -> (tensor<?x3xf32>, tensor<?x3xi32>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>)
  return %r#0, %r#1, %r#2, %r#3, %r#4 : tensor<?x3xf32>, tensor<?x3xi32>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>
}

// -----
// CHECK: moe.gate_up: x_scale given: expected False, found True; x element type: expected one of f32, bf16, found f8E4M3FN
func.func @gate_up(%a: tensor<?x32xf8E4M3FN>, %b: tensor<?xi32>, %c: tensor<?xi32>, %d: tensor<1xi32>, %e: tensor<10x32x16xi8>, %f: tensor<10x32x16xi8>, %g: tensor<?x1xi8>, %h: tensor<10x32x1xi8>, %i: tensor<10x32x1xi8>) -> tensor<?x32xf32> {
  %r = "moe.gate_up"(%a, %b, %c, %d, %e, %f, %g, %h, %i) {activation = "situ", beta = 4.000000e+00 : f64, block_rows = 64 : i64, format = "a16w4", linear_beta = 2.500000e+01 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1>, top_k = 3 : i64} : (tensor<?x32xf8E4M3FN>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>, tensor<10x32x16xi8>, tensor<10x32x16xi8>, tensor<?x1xi8>, tensor<10x32x1xi8>, tensor<10x32x1xi8>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

// -----
// CHECK: moe.gate_up: beta, linear_beta: expected none with activation silu
func.func @gate_up(%a: tensor<?x32xf8E4M3FN>, %b: tensor<?xi32>, %c: tensor<?xi32>, %d: tensor<1xi32>, %e: tensor<10x32x16xi8>, %f: tensor<10x32x16xi8>, %g: tensor<?x1xi8>, %h: tensor<10x32x1xi8>, %i: tensor<10x32x1xi8>) -> tensor<?x32xf32> {
  %r = "moe.gate_up"(%a, %b, %c, %d, %e, %f, %g, %h, %i) {activation = "silu", beta = 4.000000e+00 : f64, block_rows = 64 : i64, format = "a8w4", linear_beta = 2.500000e+01 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1>, top_k = 3 : i64} : (tensor<?x32xf8E4M3FN>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>, tensor<10x32x16xi8>, tensor<10x32x16xi8>, tensor<?x1xi8>, tensor<10x32x1xi8>, tensor<10x32x1xi8>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

// -----
// CHECK: moe.gate_up_mx: columns of h past a whole group: expected 0, found 8; h element type: expected one of f8E4M3FN, found f32
func.func @gate_up_mx(%a: tensor<?x32xf8E4M3FN>, %b: tensor<?xi32>, %c: tensor<?xi32>, %d: tensor<1xi32>, %e: tensor<10x40x16xi8>, %f: tensor<10x40x16xi8>, %g: tensor<?x1xi8>, %h: tensor<10x40x1xi8>, %i: tensor<10x40x1xi8>) -> tensor<?x40xf32> {
  %r:2 = "moe.gate_up_mx"(%a, %b, %c, %d, %e, %f, %g, %h, %i) {activation = "situ", beta = 4.000000e+00 : f64, block_rows = 64 : i64, format = "a8w4", linear_beta = 2.500000e+01 : f64, top_k = 3 : i64} : (tensor<?x32xf8E4M3FN>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>, tensor<10x40x16xi8>, tensor<10x40x16xi8>, tensor<?x1xi8>, tensor<10x40x1xi8>, tensor<10x40x1xi8>) -> (tensor<?x40xf32>, tensor<?x1xi8>)
  return %r#0 : tensor<?x40xf32>
}

// -----
// CHECK: moe.down: x_scale: expected ?x1, found ?x2
func.func @down(%a: tensor<?x32xf8E4M3FN>, %b: tensor<?xi32>, %c: tensor<?xi32>, %d: tensor<1xi32>, %e: tensor<?x3xf32>, %f: tensor<10x32x16xi8>, %g: tensor<?x2xi8>, %h: tensor<10x32x1xi8>) -> tensor<?x32xf32> {
  %r = "moe.down"(%a, %b, %c, %d, %e, %f, %g, %h) {block_rows = 64 : i64, format = "a8w4", operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1>} : (tensor<?x32xf8E4M3FN>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>, tensor<?x3xf32>, tensor<10x32x16xi8>, tensor<?x2xi8>, tensor<10x32x1xi8>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

// -----
// CHECK: moe.down: scale of w2: expected 10x24x1, found 10x32x1; y: expected ?x24, found ?x32
func.func @down(%a: tensor<?x32xf8E4M3FN>, %b: tensor<?xi32>, %c: tensor<?xi32>, %d: tensor<1xi32>, %e: tensor<?x3xf32>, %f: tensor<10x24x16xi8>, %g: tensor<?x1xi8>, %h: tensor<10x32x1xi8>) -> tensor<?x32xf32> {
  %r = "moe.down"(%a, %b, %c, %d, %e, %f, %g, %h) {block_rows = 64 : i64, format = "a8w4", operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1>} : (tensor<?x32xf8E4M3FN>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>, tensor<?x3xf32>, tensor<10x24x16xi8>, tensor<?x1xi8>, tensor<10x32x1xi8>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

// -----
// CHECK: moe.combine: eps given: expected True, found False
func.func @combine(%a: tensor<?x32xf32>, %b: tensor<?x3xi32>, %c: tensor<32xf32>) -> tensor<?x32xf32> {
  %r = "moe.combine"(%a, %b, %c) {num_experts = 10 : i64, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<?x32xf32>, tensor<?x3xi32>, tensor<32xf32>) -> tensor<?x32xf32>
  return %r : tensor<?x32xf32>
}

// -----
// CHECK: moe.gate_up: columns of h past a whole group: expected 0, found 8
func.func @rounds(%a: tensor<?x32xf32>, %b: tensor<?xi32>, %c: tensor<?xi32>, %d: tensor<1xi32>, %e: tensor<10x40x16xi8>, %f: tensor<10x40x16xi8>, %h: tensor<10x40x1xi8>, %i: tensor<10x40x1xi8>) -> tensor<?x40xf32> {
  %r = "moe.gate_up"(%a, %b, %c, %d, %e, %f, %h, %i) {activation = "silu", block_rows = 64 : i64, format = "a16w4", rounds = true, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 1, 1>, top_k = 3 : i64} : (tensor<?x32xf32>, tensor<?xi32>, tensor<?xi32>, tensor<1xi32>, tensor<10x40x16xi8>, tensor<10x40x16xi8>, tensor<10x40x1xi8>, tensor<10x40x1xi8>) -> tensor<?x40xf32>
  return %r : tensor<?x40xf32>
}
