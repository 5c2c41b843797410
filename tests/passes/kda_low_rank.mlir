// RUN: k3c opt %s -p fuse-kda-inputs,fuse-kda-decode | filecheck %s

// The decay's second map goes into the step.

// CHECK-LABEL: @low_rank(
// CHECK-NOT: k3.linear
// CHECK: "kda.decode"(%arg0, %arg1, %arg2, %arg3, %arg7, %arg4, %arg8, %arg9, %arg10, %arg5, %arg6, %arg11)

func.func @low_rank(
    %qkv: tensor<?x40xf32> {k3.name = "qkv"}, %low: tensor<?x6xf32> {k3.name = "low"}, %b: tensor<?x2xf32> {k3.name = "b"},
    %gate: tensor<?x8xf32> {k3.name = "gate"}, %conv: tensor<?x3x40xf32> {k3.name = "conv"},
    %state: tensor<?x2x4x8xf32> {k3.name = "state"}, %batch: !k3.batch {k3.name = "batch"},
    %taps: tensor<40x4xf32> {k3.name = "taps"}, %a_log: tensor<2xf32> {k3.name = "a_log"},
    %dt_bias: tensor<16xf32> {k3.name = "dt_bias"}, %norm: tensor<4xf32> {k3.name = "norm"}, %w: tensor<16x6xf32> {k3.name = "w"})
    -> (tensor<?x8xf32>, tensor<?x3x40xf32>, tensor<?x2x4x8xf32>) {
  %f = "k3.linear"(%low, %w) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x6xf32>, tensor<16x6xf32>) -> tensor<?x16xf32>
  %u:2 = "k3.short_conv"(%qkv, %taps, %conv, %batch) : (tensor<?x40xf32>, tensor<40x4xf32>, tensor<?x3x40xf32>, !k3.batch) -> (tensor<?x40xf32>, tensor<?x3x40xf32>)
  %s = "k3.silu"(%u#0) : (tensor<?x40xf32>) -> tensor<?x40xf32>
  %q0 = "k3.columns"(%s) {offset = 0 : i64} : (tensor<?x40xf32>) -> tensor<?x16xf32>
  %k0 = "k3.columns"(%s) {offset = 16 : i64} : (tensor<?x40xf32>) -> tensor<?x16xf32>
  %v = "k3.columns"(%s) {offset = 32 : i64} : (tensor<?x40xf32>) -> tensor<?x8xf32>
  %q = "k3.l2_norm"(%q0) {eps = 1.0e-6 : f64, num_heads = 2 : i64, scale = 0.353553390593 : f64} : (tensor<?x16xf32>) -> tensor<?x16xf32>
  %k = "k3.l2_norm"(%k0) {eps = 1.0e-6 : f64, num_heads = 2 : i64, scale = 1.0 : f64} : (tensor<?x16xf32>) -> tensor<?x16xf32>
  %g = "k3.kda_gate"(%f, %a_log, %dt_bias) {lower_bound = -5.0 : f64} : (tensor<?x16xf32>, tensor<2xf32>, tensor<16xf32>) -> tensor<?x16xf32>
  %beta = "k3.sigmoid"(%b) : (tensor<?x2xf32>) -> tensor<?x2xf32>
  %o:2 = "k3.kda_recurrence"(%q, %k, %v, %g, %beta, %state, %batch) : (tensor<?x16xf32>, tensor<?x16xf32>, tensor<?x8xf32>, tensor<?x16xf32>, tensor<?x2xf32>, tensor<?x2x4x8xf32>, !k3.batch) -> (tensor<?x8xf32>, tensor<?x2x4x8xf32>)
  %y = "k3.gated_rms_norm"(%o#0, %gate, %norm) {eps = 1.0e-5 : f64, num_heads = 2 : i64} : (tensor<?x8xf32>, tensor<?x8xf32>, tensor<4xf32>) -> tensor<?x8xf32>
  return %y, %u#1, %o#1 : tensor<?x8xf32>, tensor<?x3x40xf32>, tensor<?x2x4x8xf32>
}

// What others read as well stays.

// CHECK-LABEL: @read_twice(
// CHECK: %[[F:.*]] = "k3.linear"(%arg1, %arg11)
// CHECK: %[[D:.*]]:3 = "kda.decode"(%arg0, %[[F]], %arg2, %arg3, %arg7, %arg4, %arg8, %arg9, %arg10, %arg5, %arg6)
// CHECK-NEXT: return %[[D]]#0, %[[D]]#1, %[[D]]#2, %[[F]]

func.func @read_twice(
    %qkv: tensor<?x40xf32> {k3.name = "qkv"}, %low: tensor<?x6xf32> {k3.name = "low"}, %b: tensor<?x2xf32> {k3.name = "b"},
    %gate: tensor<?x8xf32> {k3.name = "gate"}, %conv: tensor<?x3x40xf32> {k3.name = "conv"},
    %state: tensor<?x2x4x8xf32> {k3.name = "state"}, %batch: !k3.batch {k3.name = "batch"},
    %taps: tensor<40x4xf32> {k3.name = "taps"}, %a_log: tensor<2xf32> {k3.name = "a_log"},
    %dt_bias: tensor<16xf32> {k3.name = "dt_bias"}, %norm: tensor<4xf32> {k3.name = "norm"}, %w: tensor<16x6xf32> {k3.name = "w"})
    -> (tensor<?x8xf32>, tensor<?x3x40xf32>, tensor<?x2x4x8xf32>, tensor<?x16xf32>) {
  %f = "k3.linear"(%low, %w) {epilogue = "none", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x6xf32>, tensor<16x6xf32>) -> tensor<?x16xf32>
  %u:2 = "k3.short_conv"(%qkv, %taps, %conv, %batch) : (tensor<?x40xf32>, tensor<40x4xf32>, tensor<?x3x40xf32>, !k3.batch) -> (tensor<?x40xf32>, tensor<?x3x40xf32>)
  %s = "k3.silu"(%u#0) : (tensor<?x40xf32>) -> tensor<?x40xf32>
  %q0 = "k3.columns"(%s) {offset = 0 : i64} : (tensor<?x40xf32>) -> tensor<?x16xf32>
  %k0 = "k3.columns"(%s) {offset = 16 : i64} : (tensor<?x40xf32>) -> tensor<?x16xf32>
  %v = "k3.columns"(%s) {offset = 32 : i64} : (tensor<?x40xf32>) -> tensor<?x8xf32>
  %q = "k3.l2_norm"(%q0) {eps = 1.0e-6 : f64, num_heads = 2 : i64, scale = 0.353553390593 : f64} : (tensor<?x16xf32>) -> tensor<?x16xf32>
  %k = "k3.l2_norm"(%k0) {eps = 1.0e-6 : f64, num_heads = 2 : i64, scale = 1.0 : f64} : (tensor<?x16xf32>) -> tensor<?x16xf32>
  %g = "k3.kda_gate"(%f, %a_log, %dt_bias) {lower_bound = -5.0 : f64} : (tensor<?x16xf32>, tensor<2xf32>, tensor<16xf32>) -> tensor<?x16xf32>
  %beta = "k3.sigmoid"(%b) : (tensor<?x2xf32>) -> tensor<?x2xf32>
  %o:2 = "k3.kda_recurrence"(%q, %k, %v, %g, %beta, %state, %batch) : (tensor<?x16xf32>, tensor<?x16xf32>, tensor<?x8xf32>, tensor<?x16xf32>, tensor<?x2xf32>, tensor<?x2x4x8xf32>, !k3.batch) -> (tensor<?x8xf32>, tensor<?x2x4x8xf32>)
  %y = "k3.gated_rms_norm"(%o#0, %gate, %norm) {eps = 1.0e-5 : f64, num_heads = 2 : i64} : (tensor<?x8xf32>, tensor<?x8xf32>, tensor<4xf32>) -> tensor<?x8xf32>
  return %y, %u#1, %o#1, %f : tensor<?x8xf32>, tensor<?x3x40xf32>, tensor<?x2x4x8xf32>, tensor<?x16xf32>
}
