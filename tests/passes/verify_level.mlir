// RUN: k3c opt %s -p verify-level --expect-error | filecheck %s
// RUN: k3c opt %s -p "verify-level{level=1}" | filecheck %s --check-prefix=ONE
// RUN: k3c opt %s -p "fuse-gate,verify-level{level=1}" --print-after | filecheck %s --check-prefix=AFTER

// CHECK: K3-P003
// CHECK: expected: only ops of level 2
// CHECK: found: k3.concat (layer 7), k3.silu
// ONE: k3.concat
// AFTER: // ---- after fuse-gate
// AFTER: k3.concat
// AFTER: // ---- after verify-level{level=1}
// AFTER: k3.concat
func.func @left(%x: tensor<?x4xf32>) -> tensor<?x8xf32> {
  %0 = "k3.silu"(%x) : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %1 = "k3.concat"(%0, %x) {operandSegmentSizes = array<i32: 2>} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x8xf32> loc("k3.concat"("layers.7"("spec notation")))
  return %1 : tensor<?x8xf32>
}
