define void @fma(ptr noalias %p0, ptr noalias %p1, ptr noalias %p2) #0 {
entry:
  br label %b1
b1:
  %t3 = phi i64 [ 0, %entry ], [ %t4, %b5 ]
  %t6 = mul nsw i64 %t3, 32
  %t7 = getelementptr inbounds i8, ptr %p0, i64 %t6
  %t8 = load <8 x float>, ptr %t7, align 1
  %t9 = mul nsw i64 %t3, 32
  %t10 = getelementptr inbounds i8, ptr %p1, i64 %t9
  %t11 = load <8 x float>, ptr %t10, align 1
  %t12 = call <8 x float> @llvm.fmuladd.v8f32(<8 x float> %t8, <8 x float> %t11, <8 x float> %t8)
  %t13 = mul nsw i64 %t3, 32
  %t14 = getelementptr inbounds i8, ptr %p2, i64 %t13
  store <8 x float> %t12, ptr %t14, align 1
  br label %b5
b5:
  %t4 = add nsw i64 %t3, 1
  %t15 = icmp slt i64 %t4, 8
  br i1 %t15, label %b1, label %b2
b2:
  ret void
}

declare <8 x float> @llvm.fmuladd.v8f32(<8 x float>, <8 x float>, <8 x float>)

!0 = !{i32 1}
