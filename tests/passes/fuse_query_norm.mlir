// RUN: k3c opt %s -p fuse-query-norm | filecheck %s

// CHECK-LABEL: @beside
// CHECK: %[[Q:.*]] = "k3.columns"(%arg0) {offset = 0 : i64}
// CHECK: %[[C:.*]] = "k3.columns"(%arg0) {offset = 6 : i64}
// CHECK-NOT: k3.rms_norm
// CHECK: %[[R:.*]]:2 = "mla.norm_write"(%[[Q]], %arg1, %[[C]], %arg2, %arg4, %arg5) {eps = 9.9{{.*}}E-7 : f64}
// CHECK: return %[[R]]#0, %[[R]]#1
func.func @beside(
    %y: tensor<?x16xf32>, %qw: tensor<6xf32>, %w: tensor<8xf32>, %z: tensor<?x6xf32>,
    %cache: tensor<?x16x10xf32>, %batch: !k3.batch) -> (tensor<?x6xf32>, tensor<?x16x10xf32>) {
  %a = "k3.columns"(%y) {offset = 0 : i64} : (tensor<?x16xf32>) -> tensor<?x6xf32>
  %c = "k3.columns"(%y) {offset = 6 : i64} : (tensor<?x16xf32>) -> tensor<?x10xf32>
  %q = "k3.rms_norm"(%a, %qw) {eps = 1.0e-6 : f64} : (tensor<?x6xf32>, tensor<6xf32>) -> tensor<?x6xf32>
  %n = "mla.latent_write"(%c, %w, %cache, %batch) {eps = 1.0e-6 : f64} : (tensor<?x10xf32>, tensor<8xf32>, tensor<?x16x10xf32>, !k3.batch) -> tensor<?x16x10xf32>
  return %q, %n : tensor<?x6xf32>, tensor<?x16x10xf32>
}

// A query of other rows (gathered over ranks) stays for itself, and so does one with another eps.
// CHECK-LABEL: @apart
// CHECK-COUNT-2: k3.rms_norm
// CHECK: mla.latent_write
func.func @apart(
    %y: tensor<?x16xf32>, %qw: tensor<6xf32>, %w: tensor<8xf32>, %z: tensor<?x6xf32>,
    %cache: tensor<?x16x10xf32>, %batch: !k3.batch) -> (tensor<?x6xf32>, tensor<?x6xf32>, tensor<?x16x10xf32>) {
  %a = "k3.columns"(%y) {offset = 0 : i64} : (tensor<?x16xf32>) -> tensor<?x6xf32>
  %c = "k3.columns"(%y) {offset = 6 : i64} : (tensor<?x16xf32>) -> tensor<?x10xf32>
  %q = "k3.rms_norm"(%z, %qw) {eps = 1.0e-6 : f64} : (tensor<?x6xf32>, tensor<6xf32>) -> tensor<?x6xf32>
  %o = "k3.rms_norm"(%a, %qw) {eps = 1.0e-5 : f64} : (tensor<?x6xf32>, tensor<6xf32>) -> tensor<?x6xf32>
  %n = "mla.latent_write"(%c, %w, %cache, %batch) {eps = 1.0e-6 : f64} : (tensor<?x10xf32>, tensor<8xf32>, tensor<?x16x10xf32>, !k3.batch) -> tensor<?x16x10xf32>
  return %q, %o, %n : tensor<?x6xf32>, tensor<?x6xf32>, tensor<?x16x10xf32>
}
