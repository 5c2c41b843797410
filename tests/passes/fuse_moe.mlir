// RUN: k3c opt %s -p "fuse-moe{block-rows=16}" | filecheck %s
// RUN: k3c opt %s -p "fuse-moe,quantize-moe{format=a8w4}" | filecheck %s --check-prefix=A8W4
// RUN: k3c opt %s -p "fuse-moe,quantize-moe{format=a16w4}" | filecheck %s --check-prefix=A16W4
// RUN: k3c opt %s -p "fuse-moe,quantize-moe{format=a8w4},fuse-requantize" | filecheck %s --check-prefix=FUSED
// RUN: k3c opt %s -p "fuse-moe,quantize-moe{format=a8w4,activations=wide}" | filecheck %s --check-prefix=WIDE
// RUN: k3c opt %s -p "fuse-moe,quantize-moe{format=a8w4,activations=wide},fuse-requantize,quantize-moe{format=a8w4,activations=wide}" | filecheck %s --check-prefix=ROUNDS

// CHECK: %[[S:.*]]:3 = "moe.sort"(%arg1) {block_rows = 16 : i64, num_experts = 4 : i64}
// CHECK-NEXT: %[[H:.*]] = "moe.gate_up"(%arg0, %[[S]]#0, %[[S]]#1, %[[S]]#2, %arg3, %arg4, %arg6, %arg7) {activation = "situ", beta = 4.0{{.*}}, block_rows = 16 : i64, format = "a16w4", linear_beta = 2.5{{.*}}, top_k = 2 : i64}
// CHECK-NEXT: %[[Y:.*]] = "moe.down"(%[[H]], %[[S]]#0, %[[S]]#1, %[[S]]#2, %arg2, %arg5, %arg8)
// CHECK-NEXT: "moe.combine"(%[[Y]], %arg1, %arg9) {eps = 1.000000e-05 : f64, num_experts = 4 : i64

// A8W4: %[[Z:.*]]:2 = "mx.quantize"(%arg0)
// A8W4: %[[H:.*]] = "moe.gate_up"(%[[Z]]#0, {{.*}}, %[[Z]]#1, %arg6, %arg7) {{{.*}}format = "a8w4"
// A8W4: %[[Q:.*]]:2 = "mx.quantize"(%[[H]])
// A8W4: "moe.down"(%[[Q]]#0, {{.*}}, %[[Q]]#1, %arg8) {{{.*}}format = "a8w4"

// FUSED: %[[Z:.*]]:2 = "mx.quantize"(%arg0)
// FUSED: %[[H:.*]]:2 = "moe.gate_up_mx"(%[[Z]]#0, {{.*}}, %[[Z]]#1, %arg6, %arg7) {{{.*}}format = "a8w4"
// FUSED-NOT: mx.quantize
// FUSED: "moe.down"(%[[H]]#0, {{.*}}, %[[H]]#1, %arg8) {{{.*}}format = "a8w4"

// WIDE: %[[Z:.*]] = "mx.round"(%arg0)
// WIDE: %[[H:.*]] = "moe.gate_up"(%[[Z]], {{.*}}format = "a16w4"
// WIDE: %[[Q:.*]] = "mx.round"(%[[H]])
// WIDE: "moe.down"(%[[Q]], {{.*}}format = "a16w4"

// ROUNDS: %[[Z:.*]] = "mx.round"(%arg0)
// ROUNDS: %[[H:.*]] = "moe.gate_up"(%[[Z]], {{.*}}format = "a16w4", {{.*}}rounds = true
// ROUNDS-NOT: mx.round
// ROUNDS: "moe.down"(%[[H]], {{.*}}format = "a16w4"

// A16W4-NOT: mx.quantize
// A16W4: format = "a16w4"
func.func @experts(
    %x: tensor<?x64xf32>, %ids: tensor<?x2xi32>, %weights: tensor<?x2xf32>, %w1: tensor<4x32x32xi8>, %w3: tensor<4x32x32xi8>,
    %w2: tensor<4x64x16xi8>, %s1: tensor<4x32x2xi8>, %s3: tensor<4x32x2xi8>, %s2: tensor<4x64x1xi8>, %norm: tensor<64xf32>) -> tensor<?x64xf32> {
  %r = "k3.experts"(%x, %ids, %weights, %w1, %w3, %w2, %s1, %s3, %s2) {activation = "situ", beta = 4.0 : f64, linear_beta = 25.0 : f64, format = "mxfp4", operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1>} : (tensor<?x64xf32>, tensor<?x2xi32>, tensor<?x2xf32>, tensor<4x32x32xi8>, tensor<4x32x32xi8>, tensor<4x64x16xi8>, tensor<4x32x2xi8>, tensor<4x32x2xi8>, tensor<4x64x1xi8>) -> tensor<?x64xf32>
  %y = "k3.rms_norm"(%r, %norm) {eps = 1.0e-5 : f64} : (tensor<?x64xf32>, tensor<64xf32>) -> tensor<?x64xf32>
  return %y : tensor<?x64xf32>
}
