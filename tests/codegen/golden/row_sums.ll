define void @row_sums(ptr noalias %p0, ptr noalias %p1) #0 {
entry:
  %t19 = alloca {ptr, ptr}, align 8
  %t20 = getelementptr {ptr, ptr}, ptr %t19, i32 0, i32 0
  store ptr %p0, ptr %t20
  %t21 = getelementptr {ptr, ptr}, ptr %t19, i32 0, i32 1
  store ptr %p1, ptr %t21
  call void @kiln_parallel_for(ptr @row_sums.body0.entry, ptr %t19, i64 32)
  ret void
}

define internal void @row_sums.body0.entry(ptr %closure, i64 %begin, i64 %end) #0 {
  %f0 = getelementptr {ptr, ptr}, ptr %closure, i32 0, i32 0
  %v0 = load ptr, ptr %f0
  %f1 = getelementptr {ptr, ptr}, ptr %closure, i32 0, i32 1
  %v1 = load ptr, ptr %f1
  call void @row_sums.body0(ptr %v0, ptr %v1, i64 %begin, i64 %end)
  ret void
}

define internal void @row_sums.body0(ptr noalias %c0, ptr noalias %c1, i64 %begin, i64 %end) #0 {
entry:
  %t3 = icmp slt i64 %begin, %end
  br i1 %t3, label %b1, label %b2
b1:
  %t4 = phi i64 [ %begin, %entry ], [ %t5, %b6 ]
  %t7 = mul nsw i64 %t4, 16
  %t8 = getelementptr inbounds i8, ptr %c0, i64 %t7
  %t9 = load <4 x float>, ptr %t8, align 1
  %t10 = shufflevector <4 x float> %t9, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %t11 = shufflevector <4 x float> %t9, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %t12 = fadd contract <2 x float> %t10, %t11
  %t13 = extractelement <2 x float> %t12, i32 0
  %t14 = extractelement <2 x float> %t12, i32 1
  %t15 = fadd contract float %t13, %t14
  %t16 = mul nsw i64 %t4, 4
  %t17 = getelementptr inbounds i8, ptr %c1, i64 %t16
  store float %t15, ptr %t17, align 1
  br label %b6
b6:
  %t5 = add nsw i64 %t4, 1
  %t18 = icmp slt i64 %t5, %end
  br i1 %t18, label %b1, label %b2
b2:
  ret void
}

declare void @kiln_parallel_for(ptr, ptr, i64)

!0 = !{i32 1}
