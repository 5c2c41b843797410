// RUN: k3c opt %s | k3c opt - | filecheck %s

// CHECK-LABEL: @quantize(
// CHECK: "mx.quantize"({{.*}} -> (tensor<?x32xf8E4M3FN>, tensor<?x1xi8>)
func.func @quantize(%a: tensor<?x32xf32>) -> (tensor<?x32xf8E4M3FN>, tensor<?x1xi8>) {
  %r:2 = "mx.quantize"(%a) : (tensor<?x32xf32>) -> (tensor<?x32xf8E4M3FN>, tensor<?x1xi8>)
  return %r#0, %r#1 : tensor<?x32xf8E4M3FN>, tensor<?x1xi8>
}

// CHECK-LABEL: @round(
// CHECK: "mx.round"({{.*}} -> tensor<?x32xbf16>
func.func @round(%a: tensor<?x32xbf16>) -> tensor<?x32xbf16> {
  %r = "mx.round"(%a) : (tensor<?x32xbf16>) -> tensor<?x32xbf16>
  return %r : tensor<?x32xbf16>
}
