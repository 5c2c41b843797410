// RUN: k3c opt %s --split-input --expect-error | filecheck %s

// CHECK: mx.quantize: columns past a whole group: expected 0, found 8; values: expected ?x40, found ?x32
func.func @quantize(%a: tensor<?x40xf32>) -> (tensor<?x32xf8E4M3FN>, tensor<?x1xi8>) {
  %r:2 = "mx.quantize"(%a) : (tensor<?x40xf32>) -> (tensor<?x32xf8E4M3FN>, tensor<?x1xi8>)
  return %r#0, %r#1 : tensor<?x32xf8E4M3FN>, tensor<?x1xi8>
}

// -----
// CHECK: mx.round: columns past a whole group: expected 0, found 8; y type: expected tensor<?x40xf32>, found tensor<?x40xbf16>
func.func @round(%a: tensor<?x40xf32>) -> tensor<?x40xbf16> {
  %r = "mx.round"(%a) : (tensor<?x40xf32>) -> tensor<?x40xbf16>
  return %r : tensor<?x40xbf16>
}
