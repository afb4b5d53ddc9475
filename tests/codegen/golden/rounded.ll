define void @rounded(ptr noalias %p0, ptr noalias %p1) #0 {
entry:
  br label %b1
b1:
  %t3 = phi i64 [ 0, %entry ], [ %t4, %b5 ]
  %t6 = mul nsw i64 %t3, 16
  %t7 = getelementptr inbounds i8, ptr %p0, i64 %t6
  %t8 = load <4 x float>, ptr %t7, align 1
  %t9 = call <4 x float> @llvm.fabs.v4f32(<4 x float> %t8)
  %t10 = fcmp olt <4 x float> %t9, <float 0x4160000000000000, float 0x4160000000000000, float 0x4160000000000000, float 0x4160000000000000>
  %t11 = fadd <4 x float> %t9, <float 0x4160000000000000, float 0x4160000000000000, float 0x4160000000000000, float 0x4160000000000000>
  %t12 = fsub <4 x float> %t11, <float 0x4160000000000000, float 0x4160000000000000, float 0x4160000000000000, float 0x4160000000000000>
  %t13 = call <4 x float> @llvm.copysign.v4f32(<4 x float> %t12, <4 x float> %t8)
  %t14 = fcmp ogt <4 x float> %t13, %t8
  %t15 = select <4 x i1> %t14, <4 x float> <float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000>, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>
  %t16 = fsub <4 x float> %t13, %t15
  %t17 = select <4 x i1> %t10, <4 x float> %t16, <4 x float> %t8
  %t18 = bitcast <4 x float> %t17 to <4 x i32>
  %t19 = and <4 x i32> %t18, <i32 2147483647, i32 2147483647, i32 2147483647, i32 2147483647>
  %t20 = lshr <4 x i32> %t18, <i32 16, i32 16, i32 16, i32 16>
  %t21 = and <4 x i32> %t20, <i32 32768, i32 32768, i32 32768, i32 32768>
  %t22 = bitcast <4 x i32> %t19 to <4 x float>
  %t23 = fadd <4 x float> %t22, <float 0x3FE0000000000000, float 0x3FE0000000000000, float 0x3FE0000000000000, float 0x3FE0000000000000>
  %t24 = bitcast <4 x float> %t23 to <4 x i32>
  %t25 = sub <4 x i32> %t24, <i32 1056964608, i32 1056964608, i32 1056964608, i32 1056964608>
  %t26 = lshr <4 x i32> %t19, <i32 13, i32 13, i32 13, i32 13>
  %t27 = and <4 x i32> %t26, <i32 1, i32 1, i32 1, i32 1>
  %t28 = sub <4 x i32> %t19, <i32 939520001, i32 939520001, i32 939520001, i32 939520001>
  %t29 = add <4 x i32> %t28, %t27
  %t30 = lshr <4 x i32> %t29, <i32 13, i32 13, i32 13, i32 13>
  %t31 = icmp ugt <4 x i32> %t19, <i32 2139095040, i32 2139095040, i32 2139095040, i32 2139095040>
  %t32 = select <4 x i1> %t31, <4 x i32> <i32 32256, i32 32256, i32 32256, i32 32256>, <4 x i32> <i32 31744, i32 31744, i32 31744, i32 31744>
  %t33 = icmp ult <4 x i32> %t19, <i32 947912704, i32 947912704, i32 947912704, i32 947912704>
  %t34 = select <4 x i1> %t33, <4 x i32> %t25, <4 x i32> %t30
  %t35 = icmp uge <4 x i32> %t19, <i32 1199570944, i32 1199570944, i32 1199570944, i32 1199570944>
  %t36 = select <4 x i1> %t35, <4 x i32> %t32, <4 x i32> %t34
  %t37 = or <4 x i32> %t36, %t21
  %t38 = trunc <4 x i32> %t37 to <4 x i16>
  %t39 = bitcast <4 x i16> %t38 to <4 x half>
  %t40 = mul nsw i64 %t3, 8
  %t41 = getelementptr inbounds i8, ptr %p1, i64 %t40
  store <4 x half> %t39, ptr %t41, align 1
  br label %b5
b5:
  %t4 = add nsw i64 %t3, 1
  %t42 = icmp slt i64 %t4, 16
  br i1 %t42, label %b1, label %b2
b2:
  ret void
}

declare <4 x float> @llvm.copysign.v4f32(<4 x float>, <4 x float>)
declare <4 x float> @llvm.fabs.v4f32(<4 x float>)

!0 = !{i32 1}
