// RUN: k3c opt %s | k3c opt - | filecheck %s

// CHECK-LABEL: @latent_write(
// CHECK: "mla.latent_write"({{.*}} -> tensor<?x64x40xf32>
func.func @latent_write(%a: tensor<?x40xf32>, %b: tensor<32xf32>, %c: tensor<?x64x40xf32>, %d: !k3.batch) -> tensor<?x64x40xf32> {
  %r = "mla.latent_write"(%a, %b, %c, %d) {eps = 9.9999999999999995E-7 : f64} : (tensor<?x40xf32>, tensor<32xf32>, tensor<?x64x40xf32>, !k3.batch) -> tensor<?x64x40xf32>
  return %r : tensor<?x64x40xf32>
}

// CHECK-LABEL: @norm_write(
// CHECK: "mla.norm_write"({{.*}} -> (tensor<?x24xf32>, tensor<?x64x40xf32>)
func.func @norm_write(%a: tensor<?x24xf32>, %b: tensor<24xf32>, %c: tensor<?x40xf32>, %d: tensor<32xf32>, %e: tensor<?x64x40xf32>, %f: !k3.batch) -> (tensor<?x24xf32>, tensor<?x64x40xf32>) {
  %r:2 = "mla.norm_write"(%a, %b, %c, %d, %e, %f) {eps = 9.9999999999999995E-7 : f64} : (tensor<?x24xf32>, tensor<24xf32>, tensor<?x40xf32>, tensor<32xf32>, tensor<?x64x40xf32>, !k3.batch) -> (tensor<?x24xf32>, tensor<?x64x40xf32>)
  return %r#0, %r#1 : tensor<?x24xf32>, tensor<?x64x40xf32>
}

// CHECK-LABEL: @gather(
// CHECK: "mla.gather"({{.*}} -> tensor<?x40xf32>
func.func @gather(%a: tensor<?x64x40xf32>, %b: !k3.batch) -> tensor<?x40xf32> {
  %r = "mla.gather"(%a, %b) : (tensor<?x64x40xf32>, !k3.batch) -> tensor<?x40xf32>
  return %r : tensor<?x40xf32>
}

// CHECK-LABEL: @prefill(
// CHECK: "mla.prefill"({{.*}} -> tensor<?x64xf32>
func.func @prefill(%a: tensor<?x96xf32>, %b: tensor<?x128xf32>, %c: tensor<?x40xf32>, %d: !k3.batch, %e: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "mla.prefill"(%a, %b, %c, %d, %e) {nope_dim = 16 : i64, num_heads = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1>, rope_dim = 8 : i64, scale = 0.20412414523193151 : f64, v_dim = 16 : i64} : (tensor<?x96xf32>, tensor<?x128xf32>, tensor<?x40xf32>, !k3.batch, tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}

// CHECK-LABEL: @absorb_q(
// CHECK: "mla.absorb_q"({{.*}} -> tensor<?x128xf32>
func.func @absorb_q(%a: tensor<?x96xf32>, %b: tensor<128x32xf32>) -> tensor<?x128xf32> {
  %r = "mla.absorb_q"(%a, %b) {nope_dim = 16 : i64, num_heads = 4 : i64, rope_dim = 8 : i64} : (tensor<?x96xf32>, tensor<128x32xf32>) -> tensor<?x128xf32>
  return %r : tensor<?x128xf32>
}

// CHECK-LABEL: @decode(
// CHECK: "mla.decode"({{.*}} -> (tensor<?x?x4x32xf32>, tensor<?x?x4xf32>, tensor<?x?x4xf32>)
func.func @decode(%a: tensor<?x128xf32>, %b: tensor<?x96xf32>, %c: tensor<?x64x40xf32>, %d: !k3.batch) -> (tensor<?x?x4x32xf32>, tensor<?x?x4xf32>, tensor<?x?x4xf32>) {
  %r:3 = "mla.decode"(%a, %b, %c, %d) {num_heads = 4 : i64, rope_dim = 8 : i64, scale = 0.20412414523193151 : f64, split_tokens = 512 : i64} : (tensor<?x128xf32>, tensor<?x96xf32>, tensor<?x64x40xf32>, !k3.batch) -> (tensor<?x?x4x32xf32>, tensor<?x?x4xf32>, tensor<?x?x4xf32>)
  return %r#0, %r#1, %r#2 : tensor<?x?x4x32xf32>, tensor<?x?x4xf32>, tensor<?x?x4xf32>
}

// CHECK-LABEL: @merge(
// CHECK: "mla.merge"({{.*}} -> tensor<?x128xf32>
func.func @merge(%a: tensor<?x?x4x32xf32>, %b: tensor<?x?x4xf32>, %c: tensor<?x?x4xf32>, %d: !k3.batch) -> tensor<?x128xf32> {
  %r = "mla.merge"(%a, %b, %c, %d) {split_tokens = 512 : i64} : (tensor<?x?x4x32xf32>, tensor<?x?x4xf32>, tensor<?x?x4xf32>, !k3.batch) -> tensor<?x128xf32>
  return %r : tensor<?x128xf32>
}

// CHECK-LABEL: @value_up(
// CHECK: "mla.value_up"({{.*}} -> tensor<?x64xf32>
func.func @value_up(%a: tensor<?x128xf32>, %b: tensor<128x32xf32>, %c: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = "mla.value_up"(%a, %b, %c) {num_heads = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1>, v_dim = 16 : i64} : (tensor<?x128xf32>, tensor<128x32xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}
