// RUN: k3c opt %s -p fuse-kda-inputs | filecheck %s --check-prefix=INPUTS
// RUN: k3c opt %s -p "fuse-kda-inputs,chunk-kda{chunk-tokens=32}" | filecheck %s --check-prefix=CHUNK
// RUN: k3c opt %s -p fuse-kda-inputs,fuse-kda-decode | filecheck %s --check-prefix=DECODE

// Two heads of key width 8 and value width 4: 16 + 16 + 8 channels.

// INPUTS-NOT: k3.short_conv
// INPUTS: %[[I:.*]]:5 = "kda.inputs"(%arg0, %arg1, %arg2, %arg7, %arg4, %arg8, %arg9, %arg6) {chunk_tokens = 1 : i64, l2_eps = 9.9{{.*}}E-7 : f64, lower_bound = -5.0{{.*}}, num_heads = 2 : i64, q_scale = 0.35{{.*}} : f64}
// INPUTS: %[[C:.*]] = "kda.conv_state"(%arg0, %arg4,
// INPUTS: %[[R:.*]]:2 = "k3.kda_recurrence"(%[[I]]#0, %[[I]]#1, %[[I]]#2, %[[I]]#3, %[[I]]#4, %arg5, %arg6)
// INPUTS: %[[Y:.*]] = "k3.gated_rms_norm"(%[[R]]#0
// INPUTS: return %[[Y]], %[[C]], %[[R]]#1

// CHUNK-NOT: k3.kda_recurrence
// CHUNK: %[[I:.*]]:5 = "kda.inputs"({{.*}}chunk_tokens = 32
// CHUNK-NEXT: %[[P:.*]]:6 = "kda.prepare"(%[[I]]#0, %[[I]]#1, %[[I]]#2, %[[I]]#3, %[[I]]#4, %arg6) {chunk_tokens = 32 : i64, lower_bound = -5.0{{.*}}-> (tensor<?x2x32x8xf32>, tensor<?x2x32x4xf32>, tensor<?x2x32x8xf32>, tensor<?x2x32x8xf32>, tensor<?x2x32x32xf32>, tensor<?x2x8xf32>)
// CHUNK-NEXT: %[[M:.*]]:3 = "kda.segment_maps"(%[[P]]#0, %[[P]]#1, %[[P]]#3, %[[P]]#5, %arg6)
// CHUNK-NEXT: %[[S:.*]] = "kda.scan"(%[[M]]#0, %[[M]]#1, %[[M]]#2, %arg5, %arg6)
// CHUNK-NEXT: %[[Y:.*]]:2 = "kda.output"(%[[P]]#0, %[[P]]#1, %[[P]]#2, %[[P]]#3, %[[P]]#4, %[[P]]#5, %[[S]], %arg5, %arg3, %arg10, %arg6) {eps = 1.000000e-05 : f64}
// CHUNK-NEXT: return %[[Y]]#0, {{.*}}, %[[Y]]#1

// DECODE-NOT: kda.inputs
// DECODE: %[[D:.*]]:3 = "kda.decode"(%arg0, %arg1, %arg2, %arg3, %arg7, %arg4, %arg8, %arg9, %arg10, %arg5, %arg6)
// DECODE-NEXT: return %[[D]]#0, %[[D]]#1, %[[D]]#2

func.func @kda(
    %qkv: tensor<?x40xf32> {k3.name = "qkv"}, %f: tensor<?x16xf32> {k3.name = "f"}, %b: tensor<?x2xf32> {k3.name = "b"},
    %gate: tensor<?x8xf32> {k3.name = "gate"}, %conv: tensor<?x3x40xf32> {k3.name = "conv"},
    %state: tensor<?x2x4x8xf32> {k3.name = "state"}, %batch: !k3.batch {k3.name = "batch"},
    %taps: tensor<40x4xf32> {k3.name = "taps"}, %a_log: tensor<2xf32> {k3.name = "a_log"},
    %dt_bias: tensor<16xf32> {k3.name = "dt_bias"}, %norm: tensor<4xf32> {k3.name = "norm"})
    -> (tensor<?x8xf32>, tensor<?x3x40xf32>, tensor<?x2x4x8xf32>) {
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
